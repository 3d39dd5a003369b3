"""Runs that leave steps out, go back and average: what moves, and that resuming is exact."""

import math
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
from torch import Tensor, nn

from fidgpt import fiddlers
from fidgpt.cli.running.runs import build_trainer
from fidgpt.train import RunDirectory, RunError, Samples, Trainer, trainer
from fidgpt.train.learner import Learner
from fidgpt.train.tracking.trackers import Row, read_rows, reproducible

Config = fdl.Config[Trainer]
NUM_STEPS = 9


class Harm:
    """Spoils the gradients of some batches, by their number in the order of the data."""

    def __init__(self, factors: dict[int, float]) -> None:
        self.factors = factors
        self.read: list[int] = []

    def __call__(self, parameters: Iterable[nn.Parameter]) -> None:
        *_, last = [p for p in parameters if p.grad is not None]
        assert last.grad is not None
        last.grad.mul_(self.factors.get(self.read[-1], 1.0))


class Run:
    """A run that is trained, in a directory of its own, by a trainer whose batches do harm."""

    def __init__(self, cfg: Config, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cfg, self.path, self._patch = cfg, path, monkeypatch
        cfg.num_steps, cfg.evaluators, cfg.checkpoints.keep_last = NUM_STEPS, {}, 9
        self.harm = Harm({})
        self.changes: list[dict[str, str]] = []
        self.learner: Learner

    def train(self, *, resume: bool = False, stop_in: int | None = None) -> list[Row]:
        """Trains, or on; a signal comes as batch `stop_in` is read."""
        made = build_trainer(self.cfg)
        if self.harm.factors:
            made.gradient_transform = self.harm
        read = made.data.batch

        def batch(step: int, **share: int) -> Tensor:
            self.harm.read.append(step)
            if step == stop_in:
                signal.raise_signal(signal.SIGTERM)
            return read(step, **share)

        begin = trainer.make_learner

        def keep(*arguments: Any, **options: Any) -> tuple[Learner, int]:
            self.learner, step = begin(*arguments, **options)
            return self.learner, step

        with self._patch.context() as patch:
            patch.setattr(made.data, "batch", batch)
            patch.setattr(trainer, "make_learner", keep)
            directory = RunDirectory(self.path, texts={}, changes=self.changes)
            made.train(directory, resume=resume)
        return [reproducible(row) for row in read_rows(self.path / "metrics.jsonl")]

    def forget_after(self, step: int) -> None:
        """Takes the later checkpoints away, as if the run had been killed before them."""
        for path in (self.path / "checkpoints").glob("step_*"):
            if int(path.name[5:]) > step:
                shutil.rmtree(path)

    def state(self) -> dict[str, Any]:
        """All that a run goes on from, copied."""
        optimizer = self.learner.optimizer.state_dict()["state"]
        return copied(
            {
                "model": dict(self.learner.model.state_dict()),
                "optimizer": optimizer,
                "parts": {k: part.state_dict() for k, part in self.learner.stateful.items()},
            }
        )


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Where two states differ in a bit."""
    if isinstance(one, dict) and one.keys() == other.keys():
        return [d for key in one for d in differences(one[key], other[key], f"{place}/{key}")]
    same = torch.equal(one, other) if isinstance(one, Tensor) else one == other
    return [] if same else [place]


@pytest.fixture
def run(cfg: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(cfg, tmp_path / "run", monkeypatch)


def skips(run: Run) -> None:
    fiddlers.use_skip_step(run.cfg, window=4, num_deviations=3.0)
    run.harm.factors = {3: 1e4, 8: 1e4}


def skips_what_is_no_number(run: Run) -> None:
    fiddlers.use_divergence_skip(run.cfg, most=2)
    run.harm.factors = {3: math.nan, 5: math.inf, 6: math.nan}


def goes_back(run: Run) -> None:
    fiddlers.use_roll_back(run.cfg, most=2)
    run.harm.factors = {4: math.nan, 6: math.inf}


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
    update = Learner.update
    moved: dict[int, set[str]] = {}

    def watched(self: Learner, batch: Tensor, *, step: int) -> dict[str, Any]:
        before = run.state()
        row = update(self, batch, step=step)
        found = differences(run.state(), before)
        moved[step] = {place.split("/")[1] for place in found if "/parts/average" in place}
        moved[step] |= {place.split("/")[1] for place in found if "/parts/" not in place}
        return row

    monkeypatch.setattr(Learner, "update", watched)
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


def test_a_run_goes_back_and_reads_other_batches(run: Run) -> None:
    goes_back(run)
    rows = run.train()
    # Batch 4 does harm in step 5, and 6 in the second try at step 6.
    assert run.harm.read == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert [row["step"] for row in rows] == [*range(1, NUM_STEPS + 1)]
    assert run.learner.shift == 3
    assert run.learner.stateful["divergence"].state_dict() == {"shift": 3, "num_roll_backs": 2}
    assert all(math.isfinite(row["grad_norm"]) for row in rows)


def test_a_run_that_goes_back_before_a_part_came_lets_it_begin_anew(run: Run) -> None:
    run.train()
    run.forget_after(4)
    run.cfg.checkpoints.every = 100
    goes_back(run)
    fiddlers.use_skip_step(run.cfg, window=64)
    run.changes = [{"path": "guard", "change": "+", "kind": "restart"}]
    run.harm.factors, run.harm.read = {7: math.nan}, []
    rows = run.train(resume=True)
    assert run.harm.read == [4, 5, 6, 7, 8, 9, 10, 11, 12]
    heard = run.learner.stateful["guard"].state_dict()["losses"]
    assert heard == pytest.approx([row["loss"] for row in rows[4:]])
    assert run.learner.shift == 4


def test_a_checkpoint_that_a_signal_left_changes_no_way_back(run: Run) -> None:
    goes_back(run)
    whole = run.train()
    run.forget_after(2)
    assert len(run.train(resume=True, stop_in=2)) == 3
    assert (run.path / "checkpoints" / "step_00000003").exists()
    assert run.train(resume=True) == whole


def test_a_run_without_a_checkpoint_or_a_try_left_ends_with_a_report(run: Run) -> None:
    fiddlers.use_roll_back(run.cfg, most=1)
    run.harm.factors = {0: math.nan}
    with pytest.raises(RunError, match="step 1 diverged(.|\n)*no good checkpoint to go back to"):
        run.train()
    shutil.rmtree(run.path)
    run.harm.factors = dict.fromkeys(range(4, 20), math.nan)
    with pytest.raises(RunError, match="step 5 diverged: grad_norm is nan") as failed:
        run.train()
    words = str(failed.value)
    assert "The gradients of 1 of " in words and "the last checkpoint is of step 4" in words
    last = [*dict(run.learner.model.named_parameters())][-1]
    assert f"came first to {last}" in words
    assert "divergence.most=1" in words and "use_roll_back" not in words
    assert "use_divergence_skip" in words and "--resume=" in words
    assert run.harm.read == [0, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("every", [1, 100])
def test_weights_that_a_step_spoilt_are_neither_saved_nor_sampled(run: Run, every: int) -> None:
    run.cfg.optimizer.lr, run.cfg.checkpoints.every = 1e38, every
    if every > 1:
        run.cfg.samples = fdl.Config(Samples, prompts=["a"], num_tokens=1, every=1)
    with pytest.raises(
        RunError, match=r"1 diverged: after it \d+ of|no sample can be written: the"
    ):
        run.train()
    assert not [*run.path.glob("checkpoints/step_*")]


def test_what_is_measured_counts_in_a_step_that_is_left_out_too(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fiddlers.use_divergence_skip(run.cfg)
    run.harm.factors = {0: math.nan}
    monkeypatch.setattr(trainer, "evaluate", lambda *_: {"validation/loss": math.nan})
    with pytest.raises(
        RunError, match=r"step 1 diverged: validation/loss is nan\.(.|\n)*roll_back"
    ):
        run.train()


def test_both_weights_and_their_average_are_measured(run: Run) -> None:
    fiddlers.use_ema(run.cfg, beta=0.9)
    evaluators = build_trainer(run.cfg).evaluators
    assert not evaluators  # the fixture has none, to be quick
    run.cfg.evaluators = {"validation": fdl.Config(NumberOf, run)}
    rows = run.train()
    last = rows[-1]
    average = run.learner.average
    assert average is not None
    size = sum(p.double().abs().sum().item() for p in run.learner.model.parameters())
    averaged = sum(w.double().abs().sum().item() for w in average.state_dict()["weights"].values())
    assert last["validation/size"] == size
    assert last["validation/averaged/size"] == averaged != size


class NumberOf:
    """Measures how large the weights of the learner's model are."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def prepare(self, *, show_progress: bool = True) -> None: ...

    def due(self, step: int, *, num_steps: int) -> bool:
        return step == num_steps

    def __call__(self, *_: Any) -> dict[str, float]:
        model = self._run.learner.model
        return {"size": sum(p.double().abs().sum().item() for p in model.parameters())}
