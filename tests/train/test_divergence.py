"""Policies for steps that diverge, alone and in whole runs."""

import functools
import math
import random
import shutil
import statistics
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest
import torch
from harmed import NUM_STEPS, Run, differences, goes_back
from run_facts import reproducible

from fidgpt import fiddlers
from fidgpt.optim import LayerDecay, ParameterGroups, Rule, is_matrix
from fidgpt.runs.building import build_trainer
from fidgpt.train import (
    BFloat16,
    Decision,
    Guard,
    RunError,
    Samples,
    SkipDiverged,
    SkipOutliers,
    Trainer,
    TrainStep,
)
from fidgpt.train.state import TrainState
from fidgpt.train.step_metrics import LaunchedStep
from fidgpt.train.trackers.trackers import Row, read_rows


def goes_back_schedule_free(run: Run) -> None:
    goes_back(run)
    fiddlers.use_schedule_free(run.cfg)


def skips(run: Run) -> None:
    fiddlers.use_skip_step(run.cfg, window=4, num_deviations=3.0)
    run.harm.factors = {3: 1e4, 8: 1e4}


def skips_not_finite(run: Run) -> None:
    fiddlers.use_divergence_skip(run.cfg, most=2)
    run.harm.factors = {3: math.nan, 5: math.inf, 6: math.nan}


def changed(values: dict[str, Any] | None = None, **uses: dict[str, Any]) -> Callable[[Run], None]:
    """Return what sets values in the config of a run, and applies fiddlers to it."""

    def use(run: Run) -> None:
        for name, arguments in uses.items():
            getattr(fiddlers, f"use_{name}")(run.cfg, **arguments)
        for path, value in (values or {}).items():
            *parents, last = path.split(".")
            setattr(functools.reduce(getattr, parents, run.cfg), last, value)

    return use


BFLOAT16 = {"precision": fdl.Config(BFloat16)}
BALANCED: dict[str, Any] = {"moe": {"num_experts": 4, "ffn_dim": 32}, "loss_free_balancing": {}}
PARTS = {"batch_size": 4, "micro_batch_size": 2}
RULE = fdl.Config(Rule, "matrices", match=is_matrix, lr_scale=fdl.Config(LayerDecay, 0.5))
USES: dict[str, Callable[[Run], None]] = {
    "skips": skips,
    "goes_back_schedule_free": goes_back_schedule_free,
    "skips_not_finite": skips_not_finite,
    "goes_back": goes_back,
    "averages": changed(ema={"beta": 0.7}),
    "decays_less": changed(
        {"optimizer.weight_decay": 5.0},
        weight_decay_schedule={},
        step_meters={"every": 3},
        value_clipping={"max_grad_value": 0.01},
    ),
    "dropout": changed({"model.dropout": 0.2}),
    "accumulation": changed({"batch_size": 4, "micro_batch_size": 1}),
    "bfloat16": changed(BFLOAT16),
    "muon_of_experts": changed(
        moe={"num_experts": 3}, mup={"base_dim": 8}, muon={"matrix_scale": 2.0}
    ),
    "narrow_experts": changed(PARTS | BFLOAT16, **BALANCED),
    "layer_decay": changed({"groups": fdl.Config(ParameterGroups, [RULE])}),
    "cycles": changed(cycles={"cycles": [3], "rewarmup": 1}),
    **{name: changed(**{name: {}}) for name in ("muon", "lion", "adafactor", "wsd", "adamw")},
}
LONG = {"wsd", "cycles", "adamw"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        pytest.param(use, id=name, marks=[pytest.mark.long] * (name in LONG))
        for name, use in USES.items()
    ],
)
def test_a_resumed_run_equals_one_that_never_stopped(run: Run, use: Callable[[Run], None]) -> None:
    run.cfg.model.blocks[0].attention.head_dim = 8
    use(run)
    whole = run.train()
    state = run.state()
    for stop in (6, 4, 2) if use is goes_back else (4,):
        run.forget_after(stop)
        assert run.train(resume=True) == whole
        assert differences(run.state(), state) == []
    assert [row["step"] for row in whole] == [*range(1, NUM_STEPS + 1)]
    assert len({row["loss"] for row in whole}) == NUM_STEPS


@pytest.mark.slow
@pytest.mark.parametrize("use", [skips, skips_not_finite], ids=lambda use: use.__name__)
def test_a_skipped_step_changes_nothing_but_the_step_number(
    run: Run, use: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(run)
    fiddlers.use_ema(run.cfg)
    fiddlers.use_moe(run.cfg, num_experts=2)
    fiddlers.use_loss_free_balancing(run.cfg)
    launch = TrainStep.launch
    moved: dict[int, set[str]] = {}

    def watched(
        self: TrainStep, settings: Any, state: TrainState, *batch: Any, **options: Any
    ) -> LaunchedStep:
        before, step = run.state(), state.step
        launched = launch(self, settings, state, *batch, **options)
        found = differences(run.state(), before)
        moved[step] = {place.split("/")[1] for place in found if "/parts/average" in place}
        moved[step] |= {place.split("/")[1] for place in found if "/parts/" not in place}
        return launched

    monkeypatch.setattr(TrainStep, "launch", watched)
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


def test_all_processes_roll_back_from_the_divergence_of_one(tmp_path, on_two_processes):
    shares = ("use_data_parallel", "use_fsdp")
    for share in shares:
        first, second = on_two_processes("harmed", tmp_path / share, share)
        assert first["guards"] == second["guards"]
        assert first["guards"]["divergence"] == {"shift": 1, "num_roll_backs": 1}
        for name in first["model"]:
            assert torch.equal(first["model"][name], second["model"][name])
            assert torch.equal(first["average"][name], second["average"][name])
            assert not torch.equal(first["model"][name], first["average"][name])
    whole, sharded_one = (read_rows(tmp_path / share / "run" / "metrics.jsonl") for share in shares)
    assert [row["step"] for row in whole] == [*range(1, 8)]
    assert [row.keys() for row in whole] == [row.keys() for row in sharded_one]
    assert whole[-1]["validation/averaged/loss"] != whole[-1]["validation/loss"]
    assert "update_ratio/matrices" in whole[2]
    for one, other in zip(whole, sharded_one, strict=True):
        for key in reproducible(one):
            assert one[key] == pytest.approx(other[key], rel=1e-4), key


def numbers(count: int, seed: int = 0) -> list[tuple[float, float]]:
    """Losses that fall and gradient norms that waver, with a spike here and there."""
    drawn = random.Random(seed)
    made = []
    for step in range(count):
        spike = 10 if drawn.random() < 0.1 else 0
        made.append((5 - step / count + drawn.gauss(0, 0.1) + spike, abs(drawn.gauss(1, 0.2))))
    return made


APPLY, SKIP = Decision.APPLY, Decision.SKIP


def judged(guard: Guard, seen: list[tuple[float, float]]) -> list[Decision]:
    return [guard(loss=loss, grad_norm=norm) for loss, norm in seen]


@pytest.mark.parametrize(("window", "num_deviations"), [(2, 1.0), (8, 2.0), (16, 6.0)])
def test_a_step_is_skipped_beyond_mean_and_deviations(window: int, num_deviations: float) -> None:
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


def test_a_run_goes_back_and_reads_other_batches(run: Run) -> None:
    goes_back(run)
    rows = run.train()
    # Batch 4 does harm in step 5, and 6 in the second try at step 6.
    assert run.harm.read == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert [row["step"] for row in rows] == [*range(1, NUM_STEPS + 1)]
    assert run.last.shift == 3
    assert run.last.stateful["divergence"].state_dict() == {"shift": 3, "num_roll_backs": 2}
    assert all(math.isfinite(row["grad_norm"]) for row in rows)


def test_a_checkpoint_saved_on_a_signal_is_no_rollback_target(run: Run) -> None:
    goes_back(run)
    whole = run.train()
    run.forget_after(2)
    # In the second try at step 5, after the planned checkpoint of step 4.
    assert len(run.train(resume=True, stop_in=5)) == 5
    assert (run.path / "checkpoints" / "step_00000005").exists()
    assert run.train(resume=True) == whole


def test_a_run_without_a_checkpoint_or_attempt_left_ends_with_a_report(run: Run) -> None:
    fiddlers.use_roll_back(run.cfg, most=1)
    run.harm.factors = {0: math.nan}
    with pytest.raises(RunError, match="step 1 diverged(.|\n)*no good checkpoint to roll back to"):
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
