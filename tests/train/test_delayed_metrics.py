"""Rows that come one step late, as on a device that computes while the next step is queued."""

import math
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest
from harmed import Run
from launches import before_steps
from run_facts import reproducible

from fidgpt import fiddlers
from fidgpt.train import RunError, Trainer
from fidgpt.train.step_metrics import DelayedMetrics
from fidgpt.train.trackers.trackers import Row, read_rows

Config = fdl.Config[Trainer]
Train = Callable[..., list[Row]]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read as from an accelerator."""
    init = DelayedMetrics.__init__

    def lagging(self: DelayedMetrics, *arguments: Any) -> None:
        init(self, *arguments)
        self.lag = 1

    monkeypatch.setattr(DelayedMetrics, "__init__", lagging)


def whole(rows: list[Row]) -> list[Row]:
    """Rows with the names of all metrics, without numbers that depend on the machine."""
    return [{**dict.fromkeys(row), **reproducible(row)} for row in rows]


@pytest.fixture
def measured(cfg: Config, train: Train) -> list[Row]:
    """The rows of a run that reads each one at once."""
    cfg.num_steps, cfg.checkpoints.every, cfg.evaluators["validation"].every = 7, 3, 2
    fiddlers.use_step_meters(cfg, every=2)
    return train(cfg, "at once")


@pytest.mark.slow
@pytest.mark.usefixtures("late")
def test_late_rows_are_the_same_rows(
    measured: list[Row], cfg: Config, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[tuple[str, int]] = []
    log = Trainer._log

    def logging(self: Trainer, *parts: Any) -> Any:
        order.append(("read", parts[-1].step))
        return log(self, *parts)

    monkeypatch.setattr(Trainer, "_log", logging)
    with before_steps(lambda _, state: order.append(("launched", state.step + 1))):
        assert whole(train(cfg, "late")) == whole(measured)
    # Step 5 is neither evaluated nor saved, and read once the next step was launched.
    assert order[8:12] == [("launched", 5), ("launched", 6), ("read", 5), ("read", 6)]
    stretches = train(cfg, "stretches", until_step=5)
    assert [row["step"] for row in stretches] == [1, 2, 3, 4, 5]
    assert whole(train(cfg, "stretches", resume=True)) == whole(measured)


@pytest.mark.slow
@pytest.mark.usefixtures("late")
def test_a_step_that_diverged_is_named_though_the_next_one_was_launched(run: Run) -> None:
    run.harm.factors = {2: math.nan}
    run.cfg.checkpoints.every = None
    with pytest.raises(RunError, match=r"step 3 diverged: .* of 20 parameters are not finite"):
        run.train()
    rows = read_rows(run.path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]  # none of the step, or of the one after it


@pytest.mark.slow
@pytest.mark.usefixtures("late")
def test_a_run_rolls_back_with_late_rows(run: Run) -> None:
    fiddlers.use_roll_back(run.cfg)
    run.harm.factors = {4: math.nan}
    rows = run.train()
    assert [row["step"] for row in rows] == [*range(1, len(rows) + 1)]
    assert run.last.shift == 1
