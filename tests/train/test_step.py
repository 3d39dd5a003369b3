"""The pieces of an optimizer step: gradients, schedules, meters, and averages of weights."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import fiddle as fdl
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from fidgpt.train import Average, ClipByValue, Ema, EmaDecaySqrt, RunError, StepMeters, Trainer
from fidgpt.train.step import (
    GradientNorms,
    GroupSchedules,
    Stopwatch,
    norms_of,
    require_bound,
    step_optimizer,
)
from fidgpt.train.trackers.trackers import Row


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


def test_a_part_has_a_norm_of_its_own_and_no_gradients_have_none() -> None:
    own = parameters()
    norms = GradientNorms(own)
    first, _, third, _ = own
    assert first.grad is not None and third.grad is not None
    assert norms.over([first]).item() == pytest.approx(first.grad.norm().item(), rel=1e-6)
    both = norms.over([first, third]).item()
    assert both == pytest.approx(math.hypot(first.grad.norm(), third.grad.norm()), rel=1e-6)
    assert norms.over([own[1]]).item() == 0
    assert GradientNorms([own[1]]).total.item() == 0
    assert norms_of([]).numel() == 0


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


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_a_norm_that_leaves_no_gradient_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="max_grad_norm=.* must be above 0"):
        require_bound(bound)
    for allowed in (None, 1e-3, math.inf):
        require_bound(allowed)


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


def test_a_restored_optimizer_is_still_the_one_that_is_moved() -> None:
    made = optimizer()
    schedules = GroupSchedules(made, schedule=lambda step: 1.0, others={"weight_decay": halves})
    made.load_state_dict(made.state_dict())  # which gives it other groups
    schedules.apply(2)
    assert made.param_groups[0]["weight_decay"] == 0.125


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lr", "has a schedule already"),
        ("weight_decy", "'weight_decy' is unknown(.|\n)*choose one of .*weight_decay"),
        ("betas", "'betas' is .*not a number"),
        ("amsgrad", "'amsgrad' is False, not a number"),
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


def test_an_optimizer_that_cannot_step_is_named(
    cfg: fdl.Config[Trainer], train: Callable[..., list[Row]]
) -> None:
    cfg.optimizer = fdl.Partial(torch.optim.SparseAdam, lr=0.1)
    with pytest.raises(RunError, match=r"SparseAdam cannot step .*: SparseAdam does not support d"):
        train(cfg)


def test_an_optimizer_that_cannot_step_sharded_weights_is_named(tmp_path: Path) -> None:
    meeting = f"file://{tmp_path}/meeting"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        sharded = nn.Parameter(distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]))
        sharded.grad = torch.full_like(sharded, 0.5)
        step_optimizer(torch.optim.AdamW([sharded]))
        with pytest.raises(RunError, match="Rprop cannot .* over processes: .*DataParallel"):
            step_optimizer(torch.optim.Rprop([sharded]))
    finally:
        torch.distributed.destroy_process_group()


def test_seconds_add_up_by_phase_until_they_are_taken():
    watch = Stopwatch(torch.device("cpu"))
    for _ in range(2):
        with watch.phase("forward"):
            time.sleep(0.01)
    with watch.phase("backward"):
        pass
    taken = watch.take()
    assert taken.keys() == {"seconds/forward", "seconds/backward"}
    assert taken["seconds/forward"] >= 0.02 > taken["seconds/backward"] >= 0
    assert watch.take() == {}


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


MAKE: list[Callable[[], Average]] = [
    lambda: Ema(beta=0.9),
    lambda: EmaDecaySqrt(beta=0.9, switch_step=6, decay_steps=8),
]
NUM_STEPS = 20


def model() -> nn.Module:
    """A layer with a vector that is not trained, tied to another layer."""
    one = nn.Linear(3, 4)
    one.bias.requires_grad_(False)
    two = nn.Linear(3, 4, bias=False)
    two.weight = one.weight
    return nn.ModuleDict({"one": one, "two": two})


def weights(step: int) -> torch.Tensor:
    """Those after a step, counted from 0; -1 is before the first."""
    return torch.randn((4, 3), generator=torch.Generator().manual_seed(step + 1))


def follow(average: Average, net: nn.Module, begin: int, end: int) -> None:
    """Trains from step `begin` up to `end`."""
    for step in range(begin, end):
        with torch.no_grad():
            net.get_parameter("one.weight").copy_(weights(step))
        average.update(net, step=step)


def value(average: Average) -> torch.Tensor:
    (only,) = average.state_dict()["weights"].values()
    return only


def started(average: Average) -> nn.Module:
    net = model()
    with torch.no_grad():
        net.get_parameter("one.weight").copy_(weights(-1))
    average.begin(net)
    return net


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.99])
def test_ema_is_the_geometric_sum_from_the_first_weights_on(beta: float) -> None:
    average = Ema(beta=beta)
    follow(average, started(average), 0, NUM_STEPS)
    expected = beta**NUM_STEPS * weights(-1).double()
    for step in range(NUM_STEPS):
        expected += (1 - beta) * beta ** (NUM_STEPS - 1 - step) * weights(step).double()
    torch.testing.assert_close(value(average).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_steps", [1, 5, 6, 7, 13, 14, NUM_STEPS])
def test_ema_decay_sqrt_is_the_mean_by_what_steps_count(num_steps: int) -> None:
    """The weights before the first step count nothing."""
    beta, switch, decay = 0.9, 6, 8
    average = EmaDecaySqrt(beta=beta, switch_step=switch, decay_steps=decay)
    follow(average, started(average), 0, num_steps)
    counts = [
        1 - beta if step < switch else 1 - math.sqrt(min(1, (step - switch) / decay))
        for step in range(num_steps)
    ]
    assert counts == [average.weight(step) for step in range(num_steps)]
    summed = sum(count * weights(step).double() for step, count in enumerate(counts))
    torch.testing.assert_close(value(average).double(), summed / sum(counts), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", MAKE)
def test_exchanging_twice_restores_the_weights_and_keeps_ties(make: Callable[[], Average]) -> None:
    average = make()
    net = started(average)
    follow(average, net, 0, 5)
    own, averaged = net.get_parameter("one.weight").detach().clone(), value(average).clone()
    bias = net.get_parameter("one.bias").detach().clone()
    average.exchange(net)
    assert torch.equal(net.get_parameter("one.weight"), averaged)
    assert net.get_parameter("two.weight") is net.get_parameter("one.weight")
    assert torch.equal(net.get_parameter("one.bias"), bias)
    average.exchange(net)
    assert torch.equal(net.get_parameter("one.weight"), own)
    assert torch.equal(value(average), averaged)


def test_another_model_is_refused() -> None:
    average = Ema()
    net = started(average)
    with pytest.raises(ValueError, match=r"has other parameters: 2 differ.*one\.weight"):
        average.load_state_dict({"weights": {"three.weight": weights(0)}})
    with pytest.raises(ValueError, match="belongs to another model"):
        average.exchange(net.get_submodule("two"))
    with pytest.raises(ValueError, match="beta=1"):
        Ema(beta=1.0)
    with pytest.raises(ValueError, match="decay_steps=0"):
        EmaDecaySqrt(decay_steps=0)
