"""MLPs and norms against their formulas, torch and transformers."""

import math
from functools import partial

import pytest
import torch
from small_models import drawn, filled
from torch import Tensor, nn

from fidgpt import model as lm

TRANSFORMERS = pytest.mark.xdist_group("transformers")  # whose import takes seconds
X = drawn(2, 5, 24, seed=1).double()


def tanh_form(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def exact_form(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def squared(x: Tensor) -> Tensor:
    return torch.where(x > 0, x * x, 0.0)


PLAIN = {
    lm.GELU: tanh_form,
    lm.SquaredReLU: squared,
    partial(lm.MLP, activation=lm.gelu): exact_form,
    partial(lm.MLP, activation=nn.SiLU()): silu,
}
GATED = {
    lm.SwiGLU: silu,
    lm.GeGLU: tanh_form,
    partial(lm.GatedMLP, activation=lm.gelu): exact_form,
    partial(lm.GatedMLP, activation=nn.Sigmoid()): torch.sigmoid,
}
ALL = PLAIN | GATED


@pytest.mark.parametrize(("make", "formula"), ALL.items())
def test_an_mlp_computes_its_formula(make, formula):
    mlp = filled(make(hidden_dim=24, bias=True)).double()
    active = formula(mlp.gate(X)) * mlp.up(X) if make in GATED else formula(mlp.up(X))
    torch.testing.assert_close(mlp(X), mlp.down(active))


@TRANSFORMERS
@pytest.mark.parametrize(
    ("ours", "theirs"), [(lm.gelu, "gelu"), (lm.gelu_tanh, "gelu_new"), (lm.squared_relu, "relu2")]
)
def test_activations_are_those_of_transformers(ours, theirs):
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(ours(x), ACT2FN[theirs](x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("hidden_dim", [768, 1024, 4096])
def test_a_gated_mlp_is_as_large_as_a_plain_one(hidden_dim):
    """Llama 7B's 11,008 of 4,096 is the same rule, rounded up to a multiple of 256."""
    width = lm.gated_ffn_dim(hidden_dim=hidden_dim)
    assert width % 64 == 0
    assert 0 <= width - 8 * hidden_dim / 3 < 64
    assert lm.gated_ffn_dim(hidden_dim=4096, multiple=256) == 11_008


def norms(dtype: torch.dtype) -> tuple[nn.Module, nn.Module, Tensor]:
    """Ours, torch's, and an input."""
    ours, theirs = lm.RMSNorm(hidden_dim=24, eps=1e-3), nn.RMSNorm(24, eps=1e-3)
    theirs.load_state_dict(filled(ours).state_dict())
    return ours.to(dtype), theirs.to(dtype), 3 * drawn(2, 50, 24).to(dtype)


def gradients(norm: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    out = norm(x)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return torch.autograd.grad(out, [x, *norm.parameters()], weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_norms_compute_what_torch_does(dtype):
    ours, theirs, x = norms(dtype)
    assert torch.equal(ours(x.requires_grad_()), theirs(x))
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_of_norms_are_those_of_torch(dtype):
    ours, theirs, x = norms(dtype)
    mine = gradients(ours, x)
    if dtype != torch.bfloat16:
        return torch.testing.assert_close(mine, gradients(theirs, x), rtol=1e-5, atol=1e-5)
    for a, b in zip(mine, gradients(ours.double(), x.double()), strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.double() - b).norm() < 1e-2 * b.norm()


def test_offset_weights_start_at_a_scale_of_one():
    norm, plain = lm.OffsetRMSNorm(hidden_dim=24), lm.RMSNorm(hidden_dim=24, eps=1e-6)
    assert torch.equal(norm.weight, torch.zeros(24))
    x = drawn(2, 24)
    assert torch.equal(norm(x), plain(x))


def test_without_a_weight_every_row_gets_a_mean_square_of_one():
    norm = lm.WeightlessRMSNorm(hidden_dim=24, eps=1e-3)
    assert not list(norm.parameters())
    x = drawn(2, 3, 24).double()
    torch.testing.assert_close(norm(x), x / ((x**2).mean(-1, keepdim=True) + 1e-3).sqrt())
