"""MLPs and norms against their formulas, torch and transformers."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from small_models import drawn, filled
from torch import Tensor, nn

from fidgpt import model as lm

TRANSFORMERS = pytest.mark.xdist_group("transformers")  # whose import takes seconds
X = drawn(2, 5, 24, seed=1).double()
OFFSET = pytest.param("offset", marks=TRANSFORMERS)


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


@pytest.mark.parametrize("make", ALL)
def test_an_mlp_is_made_of_the_given_linears_inits_and_width(make):
    names = ["gate", "up", "down"] if make in GATED else ["up", "down"]
    mlp = make(hidden_dim=24, init=lm.Constant(1.0), out_init=lm.Constant(2.0))
    assert [name for name, _ in mlp.named_parameters()] == [f"{name}.weight" for name in names]
    for name, weight in mlp.named_parameters():
        assert torch.equal(weight, torch.full_like(weight, 2.0 if name == "down.weight" else 1.0))
    width = lm.gated_ffn_dim(hidden_dim=24) if make in GATED else 4 * 24
    assert mlp.up.weight.shape == (width, 24)
    options = dict(
        ffn_dim=10, linear=partial(lm.LoRALinear, rank=2), bias=True, init=lm.Constant(1.0)
    )
    adapted = make(hidden_dim=24, **options)
    assert torch.equal(adapted.down.weight, torch.ones(24, 10))
    for name in names:
        assert (
            type(getattr(adapted, name)) is lm.LoRALinear
            and getattr(adapted, name).bias is not None
        )


@TRANSFORMERS
@pytest.mark.parametrize(
    ("ours", "theirs"), [(lm.gelu, "gelu"), (lm.gelu_tanh, "gelu_new"), (lm.squared_relu, "relu2")]
)
def test_activations_are_those_of_transformers(ours, theirs):
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(ours(x), ACT2FN[theirs](x), rtol=1e-6, atol=1e-6)


@TRANSFORMERS
def test_xielu_is_that_of_transformers_with_its_curvatures():
    from transformers.activations import XIELUActivation

    theirs, ours = XIELUActivation(dtype=torch.float32), lm.XIELU()
    ours.reset_parameters()
    assert {*ours.state_dict()} == {*theirs.state_dict()}
    ours.load_state_dict(theirs.state_dict())
    x = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6, atol=1e-6)
    grads = [torch.autograd.grad(one(x).sin().sum(), [*one.parameters()]) for one in (ours, theirs)]
    assert all(torch.allclose(*pair) for pair in zip(*grads, strict=True))


def test_a_prediction_head_is_a_norm_around_a_projection():
    head = filled(lm.PredictionHead(hidden_dim=24)).double()
    expected = head.norm(exact_form(head.dense(head.first(X))))
    torch.testing.assert_close(head(X), expected)


@TRANSFORMERS
def test_geglu_is_the_mlp_of_gemma():
    from transformers import Gemma2Config
    from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP

    config = Gemma2Config(hidden_size=24, intermediate_size=40)
    theirs, ours = Gemma2MLP(config), lm.GeGLU(hidden_dim=24, ffn_dim=40)
    ours.load_state_dict(
        {name.replace("_proj", ""): value for name, value in theirs.state_dict().items()}
    )
    x = X.float()
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("hidden_dim", [768, 1024, 4096])
def test_a_gated_mlp_is_as_large_as_a_plain_one(hidden_dim):
    """Llama 7B's 11,008 of 4,096 is the same rule, rounded up to a multiple of 256."""
    width = lm.gated_ffn_dim(hidden_dim=hidden_dim)
    assert width % 64 == 0
    assert 0 <= width - 8 * hidden_dim / 3 < 64
    assert lm.gated_ffn_dim(hidden_dim=4096, multiple=256) == 11_008


def test_multiple_of_rounds_up():
    rounded = [lm.multiple_of(multiple=8, value=value) for value in (0, 1, 8, 8.01, 15, 15.9, 16)]
    assert rounded == [0, 8, 8, 16, 16, 16, 16]
    assert all(isinstance(number, int) for number in rounded)


def norms(kind: str, dtype: torch.dtype) -> tuple[nn.Module, nn.Module, Tensor]:
    """Ours, with torch's or Gemma's, and an input."""
    if kind == "plain":
        ours, theirs = lm.RMSNorm(hidden_dim=24, eps=1e-3), nn.RMSNorm(24, eps=1e-3)
    else:
        from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

        ours, theirs = lm.OffsetRMSNorm(hidden_dim=24), Gemma2RMSNorm(24, eps=1e-6)
    theirs.load_state_dict(filled(ours).state_dict())
    return ours.to(dtype), theirs.to(dtype), 3 * drawn(2, 50, 24).to(dtype)


def gradients(norm: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    out = norm(x)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return torch.autograd.grad(out, [x, *norm.parameters()], weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["plain", OFFSET])
def test_norms_compute_what_torch_and_gemma_do(kind, dtype):
    ours, theirs, x = norms(kind, dtype)
    exact: dict[str, Any] = dict(
        rtol=0, atol=0 if kind == "plain" else 1e-6
    )  # Gemma's float64 is float32
    torch.testing.assert_close(ours(x.requires_grad_()), theirs(x), **exact)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), **exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plain", OFFSET])
def test_gradients_of_norms_are_those_of_torch_and_gemma(kind, dtype):
    ours, theirs, x = norms(kind, dtype)
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


def test_across_heads_a_token_has_one_mean_square():
    assert lm.width_of_heads(hidden_dim=64, head_dim=16) == 64
    width = lm.width_of_heads(hidden_dim=16, head_dim=8, num_heads=3)
    norm, x = filled(lm.RMSNorm(hidden_dim=width, eps=1e-3)), drawn(2, 3, 5, 8).transpose(1, 2)
    whole = torch.cat(x.unbind(-2), dim=-1)
    expected = torch.stack(norm(whole).split(8, dim=-1), dim=-2)
    assert torch.equal(lm.AcrossHeads(norm)(x), expected)


def test_a_weight_may_be_wider_than_what_it_scales():
    """As under autocast: float32 weights, bfloat16 activations."""
    norm = lm.RMSNorm(hidden_dim=24)
    narrow = drawn(2, 3, 24).bfloat16().requires_grad_()
    out = norm(narrow)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, norm(narrow.float()).bfloat16())
    found = torch.autograd.grad(out.sum(), [norm.weight, narrow])
    assert [gradient.dtype for gradient in found] == [torch.float32, torch.bfloat16]
