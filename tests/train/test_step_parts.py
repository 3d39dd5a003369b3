"""Runs that leave steps out, go back and average: what moves, and that resuming is exact."""

import math
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest
from harmed import NUM_STEPS, Run, differences, goes_back
from torch import Tensor

from fidgpt import fiddlers
from fidgpt.compose.runs import build_trainer
from fidgpt.train import Trainer
from fidgpt.train.state import TrainState


def skips(run: Run) -> None:
    fiddlers.use_skip_step(run.cfg, window=4, num_deviations=3.0)
    run.harm.factors = {3: 1e4, 8: 1e4}


def skips_what_is_no_number(run: Run) -> None:
    fiddlers.use_divergence_skip(run.cfg, most=2)
    run.harm.factors = {3: math.nan, 5: math.inf, 6: math.nan}


def averages(run: Run) -> None:
    fiddlers.use_ema(run.cfg, beta=0.7)


def averages_by_sqrt(run: Run) -> None:
    fiddlers.use_ema_decay_sqrt(run.cfg, beta=0.9, switch_ratio=0.4, decay_ratio=0.5)


def decays_less(run: Run) -> None:
    fiddlers.use_weight_decay_schedule(run.cfg)
    run.cfg.optimizer.weight_decay = 5.0
    fiddlers.use_step_meters(run.cfg, every=3)
    fiddlers.use_value_clipping(run.cfg, max_grad_value=0.01)


PARTS = [skips, skips_what_is_no_number, goes_back, averages, averages_by_sqrt, decays_less]


@pytest.mark.parametrize("use", PARTS, ids=lambda use: use.__name__)
def test_a_resumed_run_equals_the_run_that_never_stopped(
    run: Run, use: Callable[[Run], None]
) -> None:
    use(run)
    whole = run.train()
    state = run.state()
    for stop in (6, 4, 2) if use is goes_back else (4,):
        run.forget_after(stop)
        assert run.train(resume=True) == whole
        assert differences(run.state(), state) == []
    assert [row["step"] for row in whole] == [*range(1, NUM_STEPS + 1)]
    assert len({row["loss"] for row in whole}) == NUM_STEPS


@pytest.mark.parametrize("use", [skips, skips_what_is_no_number], ids=lambda use: use.__name__)
def test_a_step_that_is_left_out_changes_nothing_but_the_clock(
    run: Run, use: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(run)
    fiddlers.use_ema(run.cfg)
    fiddlers.use_moe(run.cfg, num_experts=2)
    fiddlers.use_loss_free_balancing(run.cfg)
    update = Trainer.update
    moved: dict[int, set[str]] = {}

    def watched(self: Trainer, state: TrainState, batch: Tensor) -> dict[str, Any]:
        before, step = run.state(), state.step
        row = update(self, state, batch)
        found = differences(run.state(), before)
        moved[step] = {place.split("/")[1] for place in found if "/parts/average" in place}
        moved[step] |= {place.split("/")[1] for place in found if "/parts/" not in place}
        return row

    monkeypatch.setattr(Trainer, "update", watched)
    rows = run.train()
    left_out = {row["step"] - 1 for row in rows if row["skipped"]}
    assert left_out == {*run.harm.factors}
    assert all(not moved[step] for step in left_out)
    assert all(
        moved[step] >= {"model", "parts"} for step in range(NUM_STEPS) if step not in left_out
    )
    rates = [row["learning_rate"] for row in rows]
    assert rates == pytest.approx(
        [1e-3 * build_trainer(run.cfg).schedule(step) for step in range(NUM_STEPS)]
    )


def test_both_weights_and_their_average_are_measured(run: Run) -> None:
    fiddlers.use_ema(run.cfg, beta=0.9)
    evaluators = build_trainer(run.cfg).evaluators
    assert not evaluators  # the fixture has none, to be quick
    run.cfg.evaluators = {"validation": fdl.Config(NumberOf, run)}
    rows = run.train()
    last = rows[-1]
    average = run.last.average
    assert average is not None
    size = sum(p.double().abs().sum().item() for p in run.last.model.parameters())
    averaged = sum(w.double().abs().sum().item() for w in average.state_dict()["weights"].values())
    assert last["validation/size"] == size
    assert last["validation/averaged/size"] == averaged != size


class NumberOf:
    """Measures how large the weights of the run's model are."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def prepare(self, *, show_progress: bool = True) -> None: ...

    def due(self, step: int, *, num_steps: int) -> bool:
        return step == num_steps

    def __call__(self, *_: Any) -> dict[str, float]:
        model = self._run.last.model
        return {"size": sum(p.double().abs().sum().item() for p in model.parameters())}
