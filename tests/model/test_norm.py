"""RMSNorm and its kin, against torch's and transformers'."""

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm

from fidgpt.model.norm import AcrossHeads, OffsetRMSNorm, RMSNorm, WeightlessRMSNorm, width_of_heads


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


def test_heads_fill_the_width_unless_said():
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
