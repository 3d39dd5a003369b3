"""MLPs and norms against their formulas, torch and transformers."""

import functools
import math
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma2Config
from transformers.activations import ACT2FN
from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP, Gemma2RMSNorm

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
from fidgpt.model.norm import AcrossHeads, OffsetRMSNorm, RMSNorm, WeightlessRMSNorm, width_of_heads

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
def test_projections_use_their_inits(make):
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


def _pair(dtype: torch.dtype) -> tuple[RMSNorm, nn.RMSNorm, Tensor]:
    torch.manual_seed(0)
    ours, theirs = RMSNorm(hidden_dim=24, eps=1e-3), nn.RMSNorm(24, eps=1e-3)
    nn.init.normal_(ours.weight)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 24, dtype=dtype, requires_grad=True)
    return ours.to(dtype), theirs.to(dtype), x


def _gradients(norm: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    out = norm(x)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return torch.autograd.grad(out, [x, *norm.parameters()], weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_forward_pass_is_bit_for_bit_that_of_torch(dtype):
    ours, theirs, x = _pair(dtype)
    assert torch.equal(ours(x), theirs(x))
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_those_of_torch(dtype):
    ours, theirs, x = _pair(dtype)
    torch.testing.assert_close(_gradients(ours, x), _gradients(theirs, x), rtol=1e-5, atol=1e-6)


def test_gradients_of_bfloat16_err_like_bfloat16():
    ours, theirs, x = _pair(torch.bfloat16)
    mine = _gradients(ours, x)
    truth = _gradients(theirs.double(), x.detach().double().requires_grad_())
    for a, b in zip(mine, truth, strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.double() - b).norm() < 1e-2 * b.norm()


def test_works_without_numbers():
    with torch.device("meta"):
        norm = RMSNorm(hidden_dim=24)
    assert norm(torch.empty(2, 3, 24, device="meta")).shape == (2, 3, 24)


def _offset_pair(dtype: torch.dtype) -> tuple[OffsetRMSNorm, Gemma2RMSNorm, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = OffsetRMSNorm(hidden_dim=24), Gemma2RMSNorm(24, eps=1e-6)
    nn.init.normal_(ours.weight, std=0.3, generator=generator)
    theirs.load_state_dict(ours.state_dict())
    x = 3 * torch.randn(2, 50, 24, generator=generator)
    return ours.to(dtype), theirs.to(dtype), x.to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offset_weights_give_what_gemma_computes(dtype):
    ours, theirs, x = _offset_pair(dtype)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-6)


def test_gradients_of_offset_weights_are_those_of_gemma():
    ours, theirs, x = _offset_pair(torch.float32)
    torch.testing.assert_close(_gradients(ours, x), _gradients(theirs, x), rtol=1e-5, atol=1e-5)


def test_gradients_of_offset_weights_err_like_bfloat16():
    ours, _, x = _offset_pair(torch.bfloat16)
    mine = _gradients(ours, x)
    truth = _gradients(ours.double(), x.detach().double().requires_grad_())
    for a, b in zip(mine, truth, strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.double() - b).norm() < 1e-2 * b.norm()


def test_offset_weights_start_at_a_scale_of_one():
    norm, plain = OffsetRMSNorm(hidden_dim=24), RMSNorm(hidden_dim=24, eps=1e-6)
    assert torch.equal(norm.weight, torch.zeros(24))
    x = torch.randn(2, 24, generator=torch.Generator().manual_seed(0))
    assert torch.equal(norm(x), plain(x))


def test_without_a_weight_every_row_gets_a_mean_square_of_one():
    norm = WeightlessRMSNorm(hidden_dim=24, eps=1e-3)
    assert not list(norm.parameters())
    x = torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(norm(x), x / ((x**2).mean(-1, keepdim=True) + 1e-3).sqrt())


def test_across_heads_a_token_has_one_mean_square():
    norm = RMSNorm(hidden_dim=width_of_heads(hidden_dim=16, head_dim=8, num_heads=3), eps=1e-3)
    nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(1)).transpose(1, 2)
    whole = torch.cat(x.unbind(-2), dim=-1)
    expected = torch.stack(norm(whole).split(8, dim=-1), dim=-2)
    assert torch.equal(AcrossHeads(norm)(x), expected)


def test_heads_fill_the_width_by_default():
    assert width_of_heads(hidden_dim=64, head_dim=16) == 64
    assert width_of_heads(hidden_dim=64, head_dim=16, num_heads=2) == 32


def test_a_weight_may_be_wider_than_what_it_scales():
    """As under autocast: float32 weights, bfloat16 activations."""
    norm = RMSNorm(hidden_dim=24)
    x = torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(0))
    narrow = x.bfloat16().requires_grad_()
    out = norm(narrow)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, norm(narrow.float()).bfloat16())
    gradients = torch.autograd.grad(out.sum(), [norm.weight, narrow])
    assert [gradient.dtype for gradient in gradients] == [torch.float32, torch.bfloat16]
