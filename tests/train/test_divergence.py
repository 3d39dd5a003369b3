"""Guards and policies for steps that diverge, alone and in whole runs."""

import math
import random
import shutil
import statistics

import fiddle as fdl
import pytest
import torch
from harmed import NUM_STEPS, Run, goes_back

from fidgpt import fiddlers
from fidgpt.train import (
    Decision,
    Guard,
    RollBack,
    RunError,
    Samples,
    SkipDiverged,
    SkipOutliers,
    Trainer,
)
from fidgpt.train.state import TrainState
from fidgpt.train.trackers.trackers import Row

APPLY, SKIP = Decision.APPLY, Decision.SKIP


def numbers(count: int, seed: int = 0) -> list[tuple[float, float]]:
    """Losses that fall and gradient norms that waver, with a spike here and there."""
    drawn = random.Random(seed)
    made = []
    for step in range(count):
        spike = 10 if drawn.random() < 0.1 else 0
        made.append((5 - step / count + drawn.gauss(0, 0.1) + spike, abs(drawn.gauss(1, 0.2))))
    return made


def judged(guard: Guard, seen: list[tuple[float, float]]) -> list[Decision]:
    return [guard(loss=loss, grad_norm=norm) for loss, norm in seen]


@pytest.mark.parametrize(("window", "num_deviations"), [(2, 1.0), (8, 2.0), (16, 6.0)])
def test_a_step_is_skipped_if_it_exceeds_mean_and_deviations(
    window: int, num_deviations: float
) -> None:
    seen = numbers(200)
    expected = []
    for step in range(len(seen)):
        before = seen[max(0, step - window) : step]
        outlier = len(before) >= max(2, window // 2) and any(
            now > statistics.fmean(past) + num_deviations * statistics.stdev(past)
            for now, past in zip(seen[step], zip(*before, strict=True), strict=True)
        )
        expected.append(SKIP if outlier else APPLY)
    found = judged(SkipOutliers(window=window, num_deviations=num_deviations), seen)
    assert found == expected
    assert {*found} == {APPLY, SKIP} or num_deviations == 6


def test_only_so_many_steps_in_a_row_are_skipped() -> None:
    policy = SkipDiverged(most=2)
    messages = [policy(is_finite=finite) for finite in (True, False, False, True, False, False)]
    assert messages == [APPLY, SKIP, SKIP, APPLY, SKIP, SKIP]
    other = SkipDiverged(most=2)
    other.load_state_dict(policy.state_dict())
    assert other(is_finite=False) is Decision.ABORT


def test_a_rollback_continues_after_the_harmful_batch() -> None:
    policy = RollBack(most=2, skip_batches=5)
    assert policy(is_finite=True) is APPLY
    for step, to, shift in [(40, 30, 15), (33, 30, 23)]:
        harmful = step - 1 + policy.shift
        assert policy(is_finite=False) is Decision.ROLL_BACK
        policy.rolled_back(step=step, to=to)
        assert policy.shift == shift
        assert to + policy.shift == harmful + 1 + policy.skip_batches  # of step `to` + 1
    other = RollBack(most=2)
    other.load_state_dict(policy.state_dict())
    assert other(is_finite=False) is Decision.ABORT


def test_a_run_goes_back_and_reads_other_batches(run: Run) -> None:
    goes_back(run)
    rows = run.train()
    # Batch 4 does harm in step 5, and 6 in the second try at step 6.
    assert run.harm.read == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert [row["step"] for row in rows] == [*range(1, NUM_STEPS + 1)]
    assert run.last.shift == 3
    assert run.last.stateful["divergence"].state_dict() == {"shift": 3, "num_roll_backs": 2}
    assert all(math.isfinite(row["grad_norm"]) for row in rows)


def test_a_rollback_to_before_a_part_was_added_resets_it(run: Run) -> None:
    run.train()
    run.forget_after(4)
    run.cfg.checkpoints.every = 100
    goes_back(run)
    fiddlers.use_skip_step(run.cfg, window=64)
    run.changes = [{"path": "guard", "change": "+", "kind": "restart"}]
    run.harm.factors, run.harm.read = {7: math.nan}, []
    rows = run.train(resume=True)
    assert run.harm.read == [4, 5, 6, 7, 8, 9, 10, 11, 12]
    judged = run.last.stateful["guard"].state_dict()["losses"]
    assert judged == pytest.approx([row["loss"] for row in rows[4:]])
    assert run.last.shift == 4


def test_a_checkpoint_saved_on_a_signal_is_no_rollback_target(run: Run) -> None:
    goes_back(run)
    whole = run.train()
    run.forget_after(2)
    assert len(run.train(resume=True, stop_in=2)) == 3
    assert (run.path / "checkpoints" / "step_00000003").exists()
    assert run.train(resume=True) == whole


def test_a_run_without_a_checkpoint_or_attempt_left_ends_with_a_report(run: Run) -> None:
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
    last = [*dict(run.last.model.named_parameters())][-1]
    assert f"reached {last} first" in words
    assert "divergence.most=1" in words and "use_roll_back" not in words
    assert "use_divergence_skip" in words and "--resume=" in words
    assert run.harm.read == [0, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("every", [1, 100])
def test_weights_that_are_not_finite_are_neither_saved_nor_sampled(run: Run, every: int) -> None:
    run.cfg.optimizer.lr, run.cfg.checkpoints.every = 1e38, every
    if every > 1:
        run.cfg.samples = fdl.Config(Samples, prompts=["a"], num_tokens=1, every=1)
    with pytest.raises(
        RunError, match=r"1 diverged: after it \d+ of|no sample can be written: the"
    ):
        run.train()
    assert not [*run.path.glob("checkpoints/step_*")]


def test_a_skipped_step_is_still_checked_by_its_evaluation(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fiddlers.use_divergence_skip(run.cfg)
    run.harm.factors = {0: math.nan}
    monkeypatch.setattr(Trainer, "_evaluate", lambda *_: {"validation/loss": math.nan})
    with pytest.raises(
        RunError, match=r"step 1 diverged: validation/loss is nan\.(.|\n)*roll_back"
    ):
        run.train()


@pytest.mark.parametrize("is_seen", [True, False], ids=["measured", "saved"])
def test_a_run_rolls_back_from_weights_that_are_not_finite(
    run: Run, is_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fiddlers.use_roll_back(run.cfg)
    run.cfg.checkpoints.every = 1
    to_spoil = [5]

    def spoil(_: Trainer, state: TrainState) -> Row:
        if state.step not in to_spoil:
            return {}
        to_spoil.remove(state.step)
        if is_seen:
            return {"validation/loss": math.nan}
        with torch.no_grad():
            next(state.model.parameters()).fill_(math.nan)
        return {}

    monkeypatch.setattr(Trainer, "_evaluate", spoil)
    rows = run.train()
    assert [row["step"] for row in rows] == [*range(1, NUM_STEPS + 1)]
    assert run.harm.read == [*range(NUM_STEPS + 1)]  # the fifth twice, with the next batch
    assert run.last.shift == 1
    assert all(math.isfinite(row["loss"]) for row in rows)
