"""An optimizer step: its pieces, micro-batches and mixtures of experts."""

import math
from collections.abc import Callable

import fiddle as fdl
import pytest
import torch
from small_models import start
from torch import nn

from fidgpt import configs, data, graph, parallel
from fidgpt.fiddlers.experts import use_loss_free_balancing, use_micro_batch_balancing, use_moe
from fidgpt.model import materialize
from fidgpt.model.moe import MoE
from fidgpt.model.reports import collecting, report_metric, report_tally
from fidgpt.runs.building import build_trainer
from fidgpt.train import (
    BFloat16,
    ClipByValue,
    Float32,
    Precision,
    StepMeters,
    Trainer,
)
from fidgpt.train.gradients import GradientNorms
from fidgpt.train.optimizer_groups import GroupSchedules
from fidgpt.train.step_metrics import StepReports


def parameters() -> list[nn.Parameter]:
    """Three that have gradients, and one between them that has none."""
    drawn = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 5), (2,), (7,), (4, 1))]
    for parameter in (made[0], made[2], made[3]):
        parameter.grad = torch.randn(parameter.shape, generator=drawn) * 3
    return made


@pytest.mark.parametrize("max_norm", [1.0, 1e6, math.inf])
def test_clipping_is_bit_for_bit_that_of_torch(max_norm: float) -> None:
    own, torchs = parameters(), parameters()
    norms = GradientNorms(own)
    expected = nn.utils.clip_grad_norm_(torchs, max_norm)
    norms.clip(max_norm)
    assert torch.equal(norms.total, expected)
    for one, other in zip(own, torchs, strict=True):
        if one.grad is None or other.grad is None:
            assert one.grad is other.grad
        else:
            assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_gradients_that_are_not_finite_are_named(value: float) -> None:
    own = parameters()
    gradient = own[2].grad
    assert gradient is not None
    gradient[3] = value
    norms = GradientNorms(own)
    assert [id(p) for p in norms.not_finite()] == [id(own[2])]
    assert not norms.total.isfinite()


def test_no_number_exceeds_the_bound_and_smaller_ones_stay() -> None:
    own, before = parameters(), parameters()
    ClipByValue(1.5)(own)
    for parameter, old in zip(own, before, strict=True):
        if parameter.grad is not None and old.grad is not None:
            assert torch.equal(parameter.grad, old.grad.clamp(-1.5, 1.5))
    assert max(p.grad.abs().max().item() for p in own if p.grad is not None) == 1.5
    with pytest.raises(ValueError, match=r"max_grad_value=0\.0 must be above 0"):
        ClipByValue(0.0)


def halves(step: int) -> float:
    return 0.5**step


def optimizer(
    make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> torch.optim.Optimizer:
    """Three groups, of which one learns twice as fast, and one does not decay."""
    drawn = torch.Generator().manual_seed(0)
    one, two, three = (nn.Parameter(torch.randn(n, 3, generator=drawn)) for n in (2, 3, 4))
    groups = [
        {"params": [one, two], "name": "hidden matrices", "lr_scale": 2.0},
        {"params": [three], "name": "tables", "weight_decay": 0.0},
    ]
    return make(groups, lr=0.25, weight_decay=0.5)


@pytest.mark.slow
def test_settings_are_peaks_times_multipliers_of_the_step() -> None:
    made = optimizer()
    schedules = GroupSchedules(
        made, schedule=lambda step: 1 / (step + 1), others={"weight_decay": halves}
    )
    for step in (0, 3, 1):  # whatever was set before
        schedules.apply(step)
        first, second = made.param_groups
        assert (first["lr"], second["lr"]) == (0.5 / (step + 1), 0.25 / (step + 1))
        assert (first["weight_decay"], second["weight_decay"]) == (0.5 * halves(step), 0.0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lr", "has a schedule already"),
        ("weight_decy", "no numeric setting 'weight_decy'"),
        ("foreach", "no numeric setting 'foreach'"),
    ],
)
def test_a_setting_that_is_not_a_number_has_no_schedule(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GroupSchedules(optimizer(), schedule=halves, others={name: halves})


def test_meters_measure_the_step_of_each_group() -> None:
    made = optimizer(torch.optim.SGD)
    groups = made.param_groups
    for group in groups:
        for p in group["params"]:
            p.grad = torch.full_like(p, 0.1)
    before = [torch.cat([p.detach().flatten() for p in g["params"]]) for g in groups]
    parameters = [p for group in groups for p in group["params"]]
    norms = GradientNorms(parameters)
    with StepMeters(every=5).measuring(groups, norms) as measured:
        norms.clip(0.01)  # which what is measured precedes
        made.step()
    after = [torch.cat([p.detach().flatten() for p in g["params"]]) for g in groups]
    for name, group, old, new in zip(
        ("hidden_matrices", "tables"), groups, before, after, strict=True
    ):
        assert measured[f"grad_norm/{name}"] == pytest.approx(0.1 * math.sqrt(len(old)))
        ratio = ((new - old).norm() / old.norm()).item()
        assert measured[f"update_ratio/{name}"] == pytest.approx(ratio, rel=1e-5)
        assert measured[f"learning_rate/{name}"] == group["lr"]
    assert len(measured) == 6


def test_groups_of_one_name_are_numbered_and_zeros_have_no_ratio() -> None:
    groups = [{"params": [nn.Parameter(torch.zeros(2))], "name": "a", "lr": 1.0} for _ in range(2)]
    groups += [{**groups[0], "name": "hidden matrices, layer 2"}]
    with StepMeters().measuring(groups, GradientNorms([])) as measured:
        pass
    assert {*measured} == {
        f"{what}/{name}"
        for what in ("grad_norm", "update_ratio", "learning_rate")
        for name in ("a_1", "a_2", "hidden_matrices_layer_2")  # that all trackers take
    }
    assert measured["update_ratio/a_1"] == 0.0


@pytest.mark.slow
def test_a_row_splits_its_step_and_a_save_counts_for_the_next_one(cfg, train):
    cfg.num_steps, cfg.checkpoints.every, cfg.micro_batch_size = 3, 2, 1
    first, second, third = train(cfg)
    parts = ("data", "forward", "backward", "optimizer")
    for row in (first, second, third):
        seconds = [row[f"seconds/{name}"] for name in parts]
        assert min(seconds) > 0
        assert sum(seconds) <= 64 / row["tokens_per_second"]
    assert "seconds/saving" in third and "seconds/saving" not in second
    assert third["seconds/evaluation"] > 0


class Steps:
    """A trainer and its state."""

    def __init__(self, trainer: Trainer, *, micro_batch_size: int | None) -> None:
        self.trainer = trainer
        self.state = start(trainer, micro_batch_size=micro_batch_size)

    def update(self, batch: data.Batch) -> dict:
        return self.trainer.update(self.state, batch)

    def gradients(self, batch: data.Batch) -> torch.Tensor:
        """Those that an optimizer would see of a batch."""
        found: list[torch.Tensor] = []

        def keep(parameters) -> None:
            found.extend(p.grad.flatten().clone() for p in parameters if p.grad is not None)

        self.trainer.gradient_transform = keep
        self.update(batch)
        return torch.cat(found)


def steps(
    *,
    micro_batch_size: int | None,
    precision: type[Precision] = Float32,
    changes: tuple[Callable[[fdl.Config], object], ...] = (),
) -> Steps:
    cfg = configs.debug()
    cfg.precision = fdl.Config(precision)
    for change in changes:
        change(cfg)
    trainer = build_trainer(cfg)
    materialize(trainer.model, device=torch.device("cpu"), seed=0)
    return Steps(trainer, micro_batch_size=micro_batch_size)


def batch(*changes: tuple[int, list[int], int]) -> data.Batch:
    """Four rows; of the first nearly nothing is learned, of the last all.

    Args:
      changes: rows, and columns of them, that hold another token.
    """
    tokens = torch.randint(0, 257, (4, 33), generator=torch.Generator().manual_seed(0))
    for row, columns, token in changes:
        tokens[row, columns] = token
    return data.Batch(tokens, torch.arange(33) < torch.tensor([[3], [16], [25], [33]]))


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_tokens_weigh_the_same_in_partly_masked_rows(micro_batch_size):
    whole, parts = steps(micro_batch_size=None), steps(micro_batch_size=micro_batch_size)
    for _ in range(3):
        one, other = (each.update(batch()) for each in (whole, parts))
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


@pytest.mark.slow
def test_micro_batches_can_be_balanced_alone():
    changes = (use_moe, use_micro_batch_balancing)
    whole, parts = (
        steps(micro_batch_size=size, changes=changes).gradients(batch()) for size in (None, 1)
    )
    assert (parts - whole).norm() > 1e-4 * whole.norm()
    assert torch.equal(whole, steps(micro_batch_size=None, changes=(use_moe,)).gradients(batch()))


def test_masked_tokens_are_read_and_leave_no_gradient():
    first, second = steps(micro_batch_size=None), steps(micro_batch_size=None)
    assert 7 not in batch().tokens[:2, [17, -1]]
    assert first.update(batch()) == second.update(batch((0, [-1], 7)))  # only a target
    counted = batch().mask
    counted[1, 20] = True  # comes after what changes
    one, other = (data.Batch(each.tokens, counted) for each in (batch(), batch((1, [17], 7))))
    assert first.update(one) != second.update(other)


@pytest.mark.slow
def test_many_narrow_micro_batches_add_up_as_well_as_few():
    def gradients(size: int, precision: type[Precision]) -> torch.Tensor:
        return steps(micro_batch_size=size, precision=precision).gradients(data.Batch(tokens))

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
            report_metric("seen", torch.ones(()))
        step.add(reports, None)
    alone = parallel.DataParallel()
    fused = alone.new_all_reduce()
    step.join(fused, alone)
    fused.start()
    (settled,) = step.settle()["count/layers"]
    assert settled.tolist() == [11.0, 22.0] and step.means()["seen"] == 2


def busiest(rows: list[dict]) -> float:
    """Load of the busiest expert over the mean load, in the last ten steps."""
    return sum(row["moe/load_max"] for row in rows[-10:]) / 10


def test_the_load_evens_out(cfg, train):
    use_moe(cfg, num_experts=4, ffn_dim=32)
    cfg.num_steps, cfg.batch_size, cfg.checkpoints.every = 40, 8, None
    by_loss = train(cfg, "by loss")
    use_loss_free_balancing(cfg)
    by_bias = train(cfg, "by bias")
    for moe in graph.find(cfg.model, MoE):
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
