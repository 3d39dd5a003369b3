"""Starts of parameters, against their standard deviations in closed form."""

import math

import pytest
import torch
from torch import Tensor

from fidgpt.model.init import (
    Constant,
    DepthScaled,
    FanIn,
    Init,
    MuP,
    Normal,
    RandomInit,
    TruncatedNormal,
)

RANDOM = [
    Normal(std=0.5),
    TruncatedNormal(std=0.5),
    FanIn(gain=2.0),
    MuP(hidden_dim=256, base_dim=64),
]


def drawn(init: Init, shape: tuple[int, ...] = (1000, 400), *, seed: int = 0) -> Tensor:
    tensor = torch.empty(shape)
    init(tensor, torch.Generator().manual_seed(seed))
    return tensor


def spread(tensor: Tensor) -> object:
    """A standard deviation, within what 400,000 draws leave open."""
    return pytest.approx(float(tensor.std()), rel=5e-3)


@pytest.mark.parametrize(
    ("init", "std"),
    [
        (Normal(std=0.3), 0.3),
        (FanIn(), 1 / 20),
        (FanIn(gain=math.sqrt(2)), math.sqrt(2) / 20),
        (MuP(hidden_dim=400, base_dim=400, base_std=0.02), 0.02),
        (MuP(hidden_dim=400, base_dim=100, base_std=0.02), 0.01),
        (DepthScaled(init=Normal(std=0.3), num_layers=8), 0.3 / 4),
        (DepthScaled(init=FanIn(), num_layers=8), 1 / 80),
        (
            DepthScaled(init=MuP(hidden_dim=400, base_dim=100, base_std=0.02), num_layers=8),
            0.01 / 4,
        ),
    ],
)
def test_values_spread_as_the_formula_says(init, std):
    values = drawn(init)
    assert std == spread(values)
    assert abs(float(values.mean())) < 5 * std / math.sqrt(values.numel())


def test_a_truncated_normal_has_no_tails():
    """Its variance is 1 - 2 a phi(a) / (2 Phi(a) - 1) of what it was before the cut at a."""
    for limit in (1.0, 2.0, 3.0):
        values = drawn(TruncatedNormal(std=0.1, limit=limit))
        density = math.exp(-(limit**2) / 2) / math.sqrt(2 * math.pi)
        kept = 1 - 2 * limit * density / math.erf(limit / math.sqrt(2))
        assert 0.1 * math.sqrt(kept) == spread(values)
        assert 0.099 * limit < float(values.abs().max()) <= 0.1 * limit


def test_depth_scaled_is_bit_for_bit_a_narrower_normal():
    scaled = DepthScaled(init=Normal(std=0.02), num_layers=12)
    assert torch.equal(drawn(scaled), drawn(Normal(std=0.02 / math.sqrt(24))))


@pytest.mark.parametrize("init", RANDOM)
def test_every_random_start_can_be_narrowed(init):
    assert isinstance(init, RandomInit)
    torch.testing.assert_close(drawn(init.narrowed(by=4.0)), drawn(init) / 4)


@pytest.mark.parametrize("init", [*RANDOM, DepthScaled(init=Normal(), num_layers=2), Constant(3.0)])
def test_only_the_given_generator_is_drawn_from(init):
    before = torch.get_rng_state()
    assert torch.equal(drawn(init), drawn(init))
    if init != Constant(3.0):
        assert not torch.equal(drawn(init), drawn(init, seed=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_product_keeps_the_size_of_its_input():
    weight, x = drawn(FanIn()), drawn(Normal(std=1.0), (400, 500), seed=1)
    assert float((weight @ x).std()) == pytest.approx(1, rel=2e-2)


def test_experts_that_are_stacked_have_the_fan_in_of_each():
    assert spread(drawn(FanIn(), (4, 250, 400))) == 1 / 20


@pytest.mark.parametrize("init", [FanIn()])
def test_a_vector_has_no_fan_in(init):
    with pytest.raises(ValueError, match=r"\[5\] has no fan-in"):
        drawn(init, (5,))
