"""Attention in blocks, against torch's scaled_dot_product_attention in float64."""

import sys

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from fidgpt.model.context import counted
from fidgpt.model.cpu import attention as cpu_attention
from fidgpt.model.kernels import Scoring, blockwise, fastest, sdpa

SHAPES = [(2, 4, 4, 7), (2, 4, 2, 16), (1, 4, 1, 21)]  # batch, heads, key heads, positions


Inputs = tuple[Tensor, Tensor, Tensor]


def _inputs(shape: tuple[int, int, int, int], dtype: torch.dtype) -> Inputs:
    """Queries, keys and values as the projections give them: heads are not contiguous."""
    batch, heads, kv_heads, seq = shape
    generator = torch.Generator().manual_seed(0)

    def make(num_heads: int) -> Tensor:
        x = torch.randn(batch, seq, num_heads, 8, generator=generator).transpose(1, 2)
        return x.to(dtype).requires_grad_()

    return make(heads), make(kv_heads), make(kv_heads)


def _causal(seq: int, *, head_dim: int = 8, dropout: float = 0.0) -> Scoring:
    """Plain causal attention among `seq` tokens."""
    ctx = counted(seq, torch.device("cpu"))
    return Scoring(ctx=ctx, scale=head_dim**-0.5, dropout=dropout)


def _with_gradients(out: Tensor, inputs: Inputs) -> list[Tensor]:
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    return [out, *torch.autograd.grad(out, inputs, weights)]


@pytest.fixture(params=[0, 512], ids=["recomputed", "kept"])
def _memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attention, "_KEEP_UP_TO", request.param)


@pytest.mark.usefixtures("_memory")
@pytest.mark.parametrize("block_size", [1, 4, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_give_the_result_and_gradients_of_torch(shape, block_size):
    inputs = _inputs(shape, torch.float64)
    ours = _with_gradients(blockwise(*inputs, _causal(shape[3]), block_size=block_size), inputs)
    theirs = _with_gradients(sdpa(*inputs, _causal(shape[3])), inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("_memory")
def test_bfloat16_errs_like_bfloat16():
    inputs = _inputs((2, 4, 2, 48), torch.bfloat16)
    ours = _with_gradients(blockwise(*inputs, _causal(48), block_size=16), inputs)
    exact = _inputs((2, 4, 2, 48), torch.bfloat16)
    exact = (exact[0].double(), exact[1].double(), exact[2].double())
    for mine, truth in zip(ours, _with_gradients(sdpa(*exact, _causal(48)), exact), strict=True):
        assert mine.dtype == torch.bfloat16
        assert (mine.double() - truth).norm() < 1e-2 * truth.norm()


def test_a_token_sees_no_later_one():
    inputs = _inputs((1, 2, 2, 12), torch.bfloat16)
    with torch.no_grad():
        before = blockwise(*inputs, _causal(12), block_size=4)
        for x in inputs:
            x[:, :, 9:] = 100.0
        assert torch.equal(
            blockwise(*inputs, _causal(12), block_size=4)[:, :, :9], before[:, :, :9]
        )


def test_each_case_gets_the_kernel_that_suits_it(monkeypatch):
    called = []
    for name in ("blockwise", "sdpa"):
        monkeypatch.setattr(
            sys.modules[fastest.__module__], name, lambda q, *_, name=name: called.append(name) or q
        )
    fastest(*_inputs(SHAPES[0], torch.bfloat16), _causal(7))
    fastest(*_inputs(SHAPES[0], torch.float32), _causal(7))
    with torch.device("meta"):
        x = torch.empty(2, 4, 7, 8, dtype=torch.bfloat16)
    fastest(x, x, x, _causal(7))
    assert called == ["blockwise", "sdpa", "sdpa"]


@pytest.mark.parametrize("kernel", [blockwise, fastest])
def test_shapes_come_out_without_numbers_going_in(kernel):
    with FakeTensorMode():
        inputs = [torch.empty(2, 4, 300, 8, dtype=torch.bfloat16, requires_grad=True)] * 3
        out = kernel(*inputs, _causal(300))
        assert out.shape == (2, 4, 300, 8)
        out.sum().backward()
        assert inputs[0].grad is not None and inputs[0].grad.shape == (2, 4, 300, 8)
