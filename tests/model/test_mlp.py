"""MLPs against their formulas and transformers' own, and the sizes that follow from others."""

import functools
import math
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma2Config
from transformers.activations import ACT2FN
from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP

from fidgpt.model.init import Constant
from fidgpt.model.linear import LoRALinear
from fidgpt.model.mlp import (
    GELU,
    MLP,
    GatedMLP,
    GeGLU,
    SquaredReLU,
    SwiGLU,
    gated_ffn_dim,
    gelu,
    gelu_tanh,
    multiple_of,
    squared_relu,
)

M = TypeVar("M", bound=nn.Module)

PLAIN = [GELU, SquaredReLU, functools.partial(MLP, activation=gelu)]
GATED = [SwiGLU, GeGLU, functools.partial(GatedMLP, activation=gelu)]


def filled(module: M) -> M:
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return module.double()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1)).double()


def tanh_form(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def exact_form(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def squared(x: Tensor) -> Tensor:
    return torch.where(x > 0, x * x, 0.0)


@pytest.mark.parametrize(
    ("make", "formula"),
    [
        (GELU, tanh_form),
        (SquaredReLU, squared),
        (functools.partial(MLP, activation=gelu), exact_form),
        (functools.partial(MLP, activation=nn.SiLU()), silu),
    ],
)
def test_a_plain_mlp_activates_what_goes_up(make, formula, x):
    module = filled(make(hidden_dim=24, bias=True))
    torch.testing.assert_close(module(x), module.down(formula(module.up(x))))


@pytest.mark.parametrize(
    ("make", "formula"),
    [
        (SwiGLU, silu),
        (GeGLU, tanh_form),
        (functools.partial(GatedMLP, activation=gelu), exact_form),
        (functools.partial(GatedMLP, activation=nn.Sigmoid()), torch.sigmoid),
    ],
)
def test_a_gated_mlp_activates_the_gate_alone(make, formula, x):
    module = filled(make(hidden_dim=24, bias=True))
    expected = module.down(formula(module.gate(x)) * module.up(x))
    torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(gelu, "gelu"), (gelu_tanh, "gelu_new"), (squared_relu, "relu2")]
)
def test_activations_are_those_of_transformers(ours, theirs):
    x = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(ours(x), ACT2FN[theirs](x), rtol=1e-6, atol=1e-6)


def test_geglu_is_the_mlp_of_gemma():
    config = Gemma2Config(hidden_size=24, intermediate_size=40)
    theirs, ours = Gemma2MLP(config), GeGLU(hidden_dim=24, ffn_dim=40)
    ours.load_state_dict(
        {name.replace("_proj", ""): value for name, value in theirs.state_dict().items()}
    )
    x = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("make", PLAIN)
def test_a_plain_mlp_is_four_times_as_wide_inside(make):
    module = make(hidden_dim=24)
    assert [name for name, _ in module.named_parameters()] == ["up.weight", "down.weight"]
    assert module.up.weight.shape == (4 * 24, 24)
    assert make(hidden_dim=24, ffn_dim=10).down.weight.shape == (24, 10)


@pytest.mark.parametrize("make", GATED)
def test_a_gated_mlp_is_as_wide_as_costs_the_same(make):
    module = make(hidden_dim=24)
    names = ["gate.weight", "up.weight", "down.weight"]
    assert [name for name, _ in module.named_parameters()] == names
    assert module.gate.weight.shape == (gated_ffn_dim(hidden_dim=24), 24)
    assert make(hidden_dim=24, ffn_dim=10).down.weight.shape == (24, 10)


@pytest.mark.parametrize("make", PLAIN + GATED)
def test_projections_are_made_by_the_part_that_is_given(make):
    linear = functools.partial(LoRALinear, rank=2)
    module = make(hidden_dim=24, linear=linear, bias=True)
    assert all(type(child) is LoRALinear for child in module.children())
    assert all(child.bias is not None for child in module.children())


@pytest.mark.parametrize("make", PLAIN + GATED)
def test_projections_start_as_said(make):
    module = make(hidden_dim=24, init=Constant(1.0), out_init=Constant(2.0))
    for name, weight in module.named_parameters():
        assert torch.equal(weight, torch.full_like(weight, 2.0 if name == "down.weight" else 1.0))
    down = make(hidden_dim=24, init=Constant(1.0)).down.weight
    assert torch.equal(down, torch.ones_like(down))


@pytest.mark.parametrize("hidden_dim", [768, 1024, 4096])
def test_a_gated_mlp_is_as_large_as_a_plain_one(hidden_dim):
    """Llama 7B's 11,008 of 4,096 is the same rule, rounded up to a multiple of 256."""
    width = gated_ffn_dim(hidden_dim=hidden_dim)
    assert width % 64 == 0
    assert 0 <= width - 8 * hidden_dim / 3 < 64
    assert gated_ffn_dim(hidden_dim=4096, multiple=256) == 11_008


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 8), (8, 8), (8.01, 16), (15.9, 16), (16, 16), (0, 0), (15, 16)]
)
def test_multiple_of_rounds_up(value, expected):
    result = multiple_of(multiple=8, value=value)
    assert result == expected
    assert isinstance(result, int)
