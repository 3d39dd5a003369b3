"""Linear layers, adapters and initialization."""

import functools
import math

import pytest
import torch
from small_models import drawn, filled, started
from torch import Tensor, nn

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
from fidgpt.model.linear import Linear, LinearFactory, LoRALinear, is_adapter
from fidgpt.model.mlp import SwiGLU


@pytest.mark.parametrize("factory", [Linear, functools.partial(LoRALinear, rank=2)])
def test_the_weight_uses_its_init_and_the_bias_is_zero(factory):
    assert isinstance(factory, LinearFactory)
    made = factory(3, 5, bias=True, init=Constant(2.0))
    assert made.weight.shape == (5, 3)
    assert torch.equal(made(torch.ones(1, 3)), torch.full((1, 5), 6.0))
    assert factory(3, 5, bias=False, init=Constant(2.0)).bias is None


RANK, ALPHA = 3, 12.0


X = drawn(2, 5, 8, seed=1).double()


def trained() -> LoRALinear:
    """An adapter that has moved away from its start."""
    return filled(LoRALinear(8, 6, rank=RANK, alpha=ALPHA, bias=True).double(), std=1.0)


def test_it_starts_as_the_plain_linear_of_the_same_seed():
    with torch.device("meta"):
        plain, adapted = Linear(8, 6, bias=True), LoRALinear(8, 6, rank=RANK, bias=True)
    x = X.float()
    assert torch.equal(started(adapted)(x), started(plain)(x))
    assert torch.equal(adapted.lora_b, torch.zeros(6, RANK))
    assert not torch.equal(adapted.lora_a, torch.zeros(RANK, 8))


def test_weights_of_a_plain_model_load_by_their_names():
    plain = SwiGLU(hidden_dim=8, bias=True)
    adapted = SwiGLU(hidden_dim=8, bias=True, linear=functools.partial(LoRALinear, rank=RANK))
    missing, unexpected = adapted.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected
    assert all(name.endswith((".lora_a", ".lora_b")) for name in missing)
    x = X.float()
    assert torch.equal(adapted(x), plain(x))


def test_it_computes_what_peft_computes():
    """There, it is base(x) + lora_B(lora_A(dropout(x))) * (lora_alpha / r)."""
    linear, x = trained(), X
    base = x @ linear.weight.T + linear.bias
    expected = base + ((x @ linear.lora_a.T) @ linear.lora_b.T) * (ALPHA / RANK)
    torch.testing.assert_close(linear(x), expected)


def test_a_merged_weight_computes_the_same():
    linear, x = trained(), X
    merged = Linear(8, 6, bias=True).double()
    merged.load_state_dict({"weight": linear.merged_weight(), "bias": linear.bias})
    torch.testing.assert_close(merged(x), linear(x))


def test_adapters_learn_while_the_weight_stays():
    linear = LoRALinear(8, 6, rank=RANK)
    for name, parameter in linear.named_parameters():
        parameter.requires_grad_(is_adapter(name, parameter))
    linear(X.float()).sum().backward()
    assert linear.weight.grad is None
    assert linear.lora_a.grad is not None  # and zero as long as B is
    assert linear.lora_b.grad is not None and linear.lora_b.grad.any()
    model = SwiGLU(hidden_dim=8, bias=True, linear=functools.partial(LoRALinear, rank=RANK))
    found = {name for name, one in model.named_parameters() if is_adapter(name, one)}
    assert found == {f"{part}.lora_{half}" for part in ("gate", "up", "down") for half in "ab"}


def test_dropout_applies_to_adapter_inputs_only():
    linear = LoRALinear(8, 6, rank=RANK, dropout=0.5, init=Constant(1.0))
    x = torch.ones(4000, 8)
    assert torch.equal(linear(x), torch.full((4000, 6), 8.0))  # B is zero
    nn.init.ones_(linear.lora_a)
    nn.init.ones_(linear.lora_b)
    torch.manual_seed(0)
    dropped = (linear(x).detach() - 8) / RANK  # each of the 8 numbers counts 2 or 0
    assert set(dropped[:, 0].tolist()) == set(range(0, 17, 2))
    assert float(dropped.mean()) == pytest.approx(8, abs=5 * math.sqrt(8 / 4000))
    assert torch.equal(linear.eval()(x), torch.full((4000, 6), 8.0 + RANK * 8))


RANDOM = [
    Normal(std=0.5),
    TruncatedNormal(std=0.5),
    FanIn(gain=2.0),
    MuP(hidden_dim=256, base_dim=64),
]


def values_of(init: Init, shape: tuple[int, ...] = (1000, 400), *, seed: int = 0) -> Tensor:
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
    ],
)
def test_standard_deviations_follow_the_formula(init, std):
    values = values_of(init)
    assert std == spread(values)
    assert abs(float(values.mean())) < 5 * std / math.sqrt(values.numel())


def test_a_truncated_normal_has_no_tails():
    """Its variance is 1 - 2 a phi(a) / (2 Phi(a) - 1) of what it was before the cut at a."""
    for limit in (1.0, 2.0, 3.0):
        values = values_of(TruncatedNormal(std=0.1, limit=limit))
        density = math.exp(-(limit**2) / 2) / math.sqrt(2 * math.pi)
        kept = 1 - 2 * limit * density / math.erf(limit / math.sqrt(2))
        assert 0.1 * math.sqrt(kept) == spread(values)
        assert 0.099 * limit < float(values.abs().max()) <= 0.1 * limit


@pytest.mark.parametrize("init", RANDOM)
def test_every_random_start_can_be_narrowed(init):
    assert isinstance(init, RandomInit)
    torch.testing.assert_close(values_of(init.narrowed(by=4.0)), values_of(init) / 4)


@pytest.mark.parametrize("init", [*RANDOM, DepthScaled(init=Normal(), num_layers=2), Constant(3.0)])
def test_only_the_given_generator_is_drawn_from(init):
    before = torch.get_rng_state()
    assert torch.equal(values_of(init), values_of(init))
    if init != Constant(3.0):
        assert not torch.equal(values_of(init), values_of(init, seed=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_fan_in_is_that_of_each_stacked_matrix_and_none_of_a_vector():
    assert spread(values_of(FanIn(), (4, 250, 400))) == 1 / 20
    with pytest.raises(ValueError, match=r"a vector has no fan-in"):
        values_of(FanIn(), (5,))
