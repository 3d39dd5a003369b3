"""RMSNorm, against torch's."""

import pytest
import torch
from torch import Tensor, nn

from fidgpt.model import RMSNorm


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


def test_gradients_are_those_of_torch():
    ours, theirs, x = _pair(torch.float32)
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
