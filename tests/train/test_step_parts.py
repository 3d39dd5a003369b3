"""Components of a step in whole runs, on one process and on two."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import safetensors.torch
import torch
from harmed import NUM_STEPS, Run, differences, goes_back
from learning import start
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fidgpt import fiddlers
from fidgpt.compose.runs import build_trainer
from fidgpt.configs import debug
from fidgpt.data import mask_loss
from fidgpt.fiddlers import use_float32
from fidgpt.fiddlers.experts import use_loss_free_balancing, use_moe
from fidgpt.graph import find
from fidgpt.model import materialize
from fidgpt.model.moe import MoE
from fidgpt.model.reports import collecting, report_tally
from fidgpt.optim import LayerDecay, ParameterGroups, Rule, is_matrix
from fidgpt.parallel import DataParallel
from fidgpt.train import BFloat16, Float32, Precision, Trainer
from fidgpt.train.state import TrainState
from fidgpt.train.step import StepReports
from fidgpt.train.trackers.trackers import read_rows, reproducible


class Steps:
    """A trainer and its state."""

    def __init__(self, trainer: Trainer, *, micro_batch_size: int | None) -> None:
        self.trainer = trainer
        self.state = start(trainer, micro_batch_size=micro_batch_size)

    def update(self, tokens: torch.Tensor) -> dict:
        return self.trainer.update(self.state, tokens)

    def gradients(self, tokens: torch.Tensor) -> torch.Tensor:
        """Those that an optimizer would see of some tokens."""
        found: list[torch.Tensor] = []

        def keep(parameters) -> None:
            found.extend(p.grad.flatten().clone() for p in parameters if p.grad is not None)

        self.trainer.gradient_transform = keep
        self.update(tokens)
        return torch.cat(found)


def steps(*, micro_batch_size: int | None, precision: type[Precision] = Float32) -> Steps:
    cfg = debug()
    cfg.precision = fdl.Config(precision)
    trainer = build_trainer(cfg)
    materialize(trainer.model, device=torch.device("cpu"), seed=0)
    return Steps(trainer, micro_batch_size=micro_batch_size)


def batch() -> torch.Tensor:
    """Four rows; of the first nearly nothing is learned, of the last all."""
    tokens = torch.randint(0, 257, (4, 33), generator=torch.Generator().manual_seed(0))
    for row, learned in enumerate((3, 16, 25, 33)):
        tokens[row, learned:] = mask_loss(tokens[row, learned:])
    return tokens


@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_tokens_weigh_the_same_in_partly_masked_rows(micro_batch_size):
    whole, parts = steps(micro_batch_size=None), steps(micro_batch_size=micro_batch_size)
    for _ in range(3):
        one, other = (each.update(batch()) for each in (whole, parts))
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


def test_masked_tokens_are_read_and_leave_no_gradient():
    first, second = steps(micro_batch_size=None), steps(micro_batch_size=None)
    tokens = batch()
    changed = tokens.clone()
    changed[0, -1] = mask_loss((mask_loss(tokens[0, -1:]) + 1) % 257)[0]  # only a target
    assert first.update(tokens) == second.update(changed)
    read = tokens.clone()
    read[1, 17] = mask_loss((mask_loss(tokens[1, 17:18]) + 1) % 257)[0]
    read[1, 20] = 5  # learned, and comes after what changed
    assert first.update(tokens) != second.update(read)


def test_a_fully_masked_batch_has_no_gradient():
    whole = steps(micro_batch_size=2)
    row = whole.update(mask_loss(torch.full((4, 33), 7)))
    assert row["loss"] == 0 and row["grad_norm"] == 0


class Called(TorchDispatchMode):
    """Keeps the names of the operations that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", [Float32, BFloat16])
def test_micro_batches_do_not_synchronize(precision):
    """An accelerator would have to finish first, and then wait for Python."""
    each = steps(micro_batch_size=1, precision=precision)

    def leave(parameters) -> None:  # the first that happens after the last micro-batch
        called.__exit__(None, None, None)

    each.trainer.gradient_transform = leave
    called = Called()
    called.__enter__()
    each.update(batch())
    forwards = [place for place, name in enumerate(called.names) if name == "embedding"]
    assert len(forwards) == 4
    asked = {"_local_scalar_dense", "is_nonzero", "item"}
    between = set(called.names[forwards[0] :])
    assert not between & asked


def test_many_narrow_micro_batches_add_up_as_well_as_few():
    def gradients(size: int, precision: type[Precision]) -> torch.Tensor:
        return steps(micro_batch_size=size, precision=precision).gradients(tokens)

    tokens = torch.randint(0, 257, (16, 33), generator=torch.Generator().manual_seed(0))
    exact = gradients(16, Float32)
    few, many = ((gradients(size, BFloat16) - exact).norm() for size in (8, 1))
    assert many < 1.3 * few


class Counter:
    """Measures its tally."""

    def settle(self, tally: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"count": tally.double()}


def test_tallies_add_up_though_a_cuda_graph_writes_them_to_one_place():
    part, place, step = Counter(), torch.zeros(2, dtype=torch.int64), StepReports()
    for counts in ([1, 2], [10, 20]):
        place.copy_(torch.tensor(counts))
        with collecting() as reports:
            report_tally(part, place)
        step.add(reports, share=0.5)
    assert step.settle(DataParallel()) == {"count/layers": [[11.0, 22.0]]}


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
    "skips_not_finite": skips_not_finite,
    "goes_back": goes_back,
    "averages": changed(ema={"beta": 0.7}),
    "averages_by_sqrt": changed(
        ema_decay_sqrt={"beta": 0.9, "switch_ratio": 0.4, "decay_ratio": 0.5}
    ),
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
    "balanced_experts": changed(PARTS, **BALANCED),
    "narrow_experts": changed(PARTS | BFLOAT16, **BALANCED),
    "layer_decay": changed({"groups": fdl.Config(ParameterGroups, [RULE])}),
    "cycles": changed(cycles={"cycles": [3], "rewarmup": 1}),
    **{name: changed(**{name: {}}) for name in ("wsd", "gqa", "learned_positions", "muon")},
    **{name: changed(**{name: {}}) for name in ("lion", "sgd", "adafactor", "float32", "adamw")},
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_resumed_run_equals_the_run_that_never_stopped(
    run: Run, use: Callable[[Run], None]
) -> None:
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


@pytest.mark.parametrize("use", [skips, skips_not_finite], ids=lambda use: use.__name__)
def test_a_skipped_step_changes_nothing_but_the_step_number(
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


def test_norms_meters_and_averages_of_sharded_parameters_are_those_of_whole_ones(
    tmp_path: Path, on_two_processes: Callable[..., list[Any]]
) -> None:
    ranks = on_two_processes("norms", tmp_path)
    for found in ranks:
        sharded_one, whole = found["sharded"], found["whole"]
        assert sharded_one.keys() == whole.keys()
        assert sharded_one.pop("not finite") == whole.pop("not finite") == ["other"]
        assert sharded_one.pop("measured") == pytest.approx(whole.pop("measured"), rel=1e-5)
        for name in whole:
            torch.testing.assert_close(sharded_one[name], whole[name])
    for name in ("total", "one"):
        assert torch.equal(ranks[0]["sharded"][name], ranks[1]["sharded"][name])


def test_all_processes_roll_back_from_the_divergence_of_one(
    tmp_path: Path, on_two_processes: Callable[..., list[Any]]
) -> None:
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
    assert "validation/averaged/loss" in whole[-1] and "update_ratio/matrices" in whole[2]
    for one, other in zip(whole, sharded_one, strict=True):
        for key in reproducible(one):
            assert one[key] == pytest.approx(other[key], rel=1e-4), key


@pytest.fixture
def mixture(cfg: fdl.Config) -> fdl.Config:
    """`debug` with a mixture in each layer, balanced without a loss."""
    use_moe(cfg, num_experts=4, ffn_dim=32)
    use_loss_free_balancing(cfg)
    cfg.batch_size = 4
    return cfg


def busiest(rows: list[dict]) -> float:
    """Load of the busiest expert over the mean load, in the last ten steps."""
    return sum(row["moe/load_max"] for row in rows[-10:]) / 10


def test_the_load_evens_out(cfg, train):
    use_moe(cfg, num_experts=4, ffn_dim=32)
    cfg.num_steps, cfg.batch_size, cfg.checkpoints.every = 40, 8, None
    by_loss = train(cfg, "by loss")
    use_loss_free_balancing(cfg)
    by_bias = train(cfg, "by bias")
    for moe in find(cfg.model, MoE):
        moe.balancing, moe.router.selection_bias = [], None
    alone = train(cfg, "alone")
    assert "moe/load_max" in alone[0] and "moe/balance" not in alone[0]
    for balanced in (by_loss, by_bias):
        assert busiest(balanced) - 1 < 0.6 * (busiest(alone) - 1)


def test_losses_and_loads_are_in_the_metrics_and_not_in_the_loss(cfg, train):
    use_moe(cfg, num_experts=4, every=2)
    row = train(cfg)[0]
    (balancing, small) = cfg.model.blocks[1].mlp.balancing
    assert row["moe/balance"] == pytest.approx(0.01, rel=0.1) and row["moe/z"] > 0
    assert len(row["moe/load/layers"]) == 1 and sum(row["moe/load/layers"][0]) == pytest.approx(4)
    assert row["moe/load_max/layers"] == [max(row["moe/load/layers"][0])]
    assert row["moe/load_max"] == row["moe/load_max/layers"][0]
    balancing.weight, small.weight = 5.0, 7.0
    heavier = train(cfg, "heavier")[0]
    assert heavier["loss"] == row["loss"]
    assert heavier["moe/balance"] == pytest.approx(500 * row["moe/balance"], rel=1e-5)
    assert heavier["grad_norm"] > row["grad_norm"]


@pytest.mark.xdist_group("processes")
def test_two_processes_balance_as_one(mixture, train, on_two_processes, tmp_path):
    use_float32(mixture)
    mixture.num_steps = 3
    one = train(mixture, "one")
    biases = on_two_processes("mixture", tmp_path)
    for row, other in zip(one, read_rows(tmp_path / "two" / "metrics.jsonl"), strict=True):
        assert other["moe/load/layers"] == row["moe/load/layers"]
        for name in ("loss", "moe/z", "moe/load_max", "grad_norm"):
            assert other[name] == pytest.approx(row[name], rel=1e-5)
    saved = [
        safetensors.torch.load_file(
            tmp_path / name / "checkpoints" / "step_00000003" / "model.safetensors"
        )["blocks.0.mlp.router.selection_bias.bias"]
        for name in ("one", "two")
    ]
    assert saved[0].dtype == torch.float32 and saved[0].abs().max() > 0
    assert all(torch.equal(bias, saved[0]) for bias in [saved[1], *biases])
