"""Averages of weights."""

import math

import pytest
import torch
from torch import nn

from fidgpt.model.moe import SelectionBias
from fidgpt.train import Average, Ema, EmaDecaySqrt

AVERAGED_STEPS = 20


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
    follow(average, started(average), 0, AVERAGED_STEPS)
    expected = beta**AVERAGED_STEPS * weights(-1).double()
    for step in range(AVERAGED_STEPS):
        expected += (1 - beta) * beta ** (AVERAGED_STEPS - 1 - step) * weights(step).double()
    torch.testing.assert_close(value(average).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_steps", [1, 5, 6, 7, 13, 14, AVERAGED_STEPS])
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


def test_exchanging_twice_restores_the_weights_and_keeps_ties() -> None:
    average = EmaDecaySqrt(beta=0.9, switch_step=6, decay_steps=8)
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


def test_the_bias_that_selects_experts_is_averaged_with_the_weights() -> None:
    average = Ema(beta=0.75)
    bias = SelectionBias(num_experts=2, rate=1.0)
    net = nn.ModuleDict({"bias": bias, "out": nn.Linear(2, 2)})
    average.begin(net)
    bias.move(torch.tensor([0, 4]))
    average.update(net, step=0)
    average.exchange(net)
    assert bias.bias.tolist() == [0.25, -0.25]
    average.exchange(net)
    assert bias.bias.tolist() == [1.0, -1.0]


def test_a_mask_of_infinities_and_counts_stay_as_they_are() -> None:
    net = nn.ModuleDict({"norm": nn.BatchNorm1d(2), "out": nn.Linear(2, 2)})
    mask = torch.full((2, 2), -math.inf).triu(1)
    net["out"].register_buffer("mask", mask.clone())
    average = Ema(beta=0.9)
    average.begin(net)
    for step in range(3):
        net["norm"](torch.randn(4, 2))
        average.update(net, step=step)
    moved = net.get_buffer("norm.running_mean").clone()
    average.exchange(net)
    assert torch.equal(net.get_buffer("out.mask"), mask)
    assert net.get_buffer("norm.num_batches_tracked") == 3
    assert not torch.equal(net.get_buffer("norm.running_mean"), moved)
    assert all(one.isfinite().all() for one in average.state_dict()["weights"].values())
