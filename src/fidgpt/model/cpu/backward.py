"""Backward passes that are faster, or more exact, than torch's own on CPUs."""

import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Call torch's RMSNorm with both tensors in the wider dtype, as its kernels require."""
    if x.dtype == weight.dtype:
        return F.rms_norm(x, weight.shape, weight, eps)
    wide = torch.promote_types(x.dtype, weight.dtype)
    return F.rms_norm(x.to(wide), weight.shape, weight.to(wide), eps).to(x.dtype)


class RMSNormFunction(torch.autograd.Function):
    """RMSNorm whose backward pass takes half as many passes over memory as torch's.

    For bfloat16 of shape [16, 256, 256], it takes 2.4 ms instead of 5.5.

    With r = 1 / sqrt(mean(x^2) + eps): dx = r g w - x r^3 mean(g w x), dw = sum(r g x).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return rms_norm(x, weight, eps)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        x, wide_weight = ctx.saved_tensors
        weight = wide_weight.to(x.dtype)
        rows, gradient = x.flatten(0, -2), outer[0].reshape(-1, x.shape[-1])
        wide = torch.promote_types(x.dtype, torch.float32)
        norms = torch.linalg.vector_norm(rows, dim=-1, dtype=wide)
        inverse = norms.square_().div_(len(weight)).add_(ctx.eps).rsqrt_()
        along = gradient * rows
        share = (along @ weight) * inverse**3 / -len(weight)
        narrow = inverse.to(x.dtype)
        row_gradient = (gradient * weight).mul_(narrow.unsqueeze(-1))
        row_gradient.addcmul_(rows, share.to(x.dtype).unsqueeze(-1))
        return row_gradient.view_as(x), (narrow @ along).to(wide_weight.dtype), None


_LINE = 16  # numbers of 64 bytes in float32


class AlignedProduct(torch.autograd.Function):
    """`x W^T` in rows that each begin at a multiple of 64 bytes.

    MKL multiplies 1.4 times as fast into such rows as into rows of 50,257 numbers, on an AMD Zen 3
    (80 and 56 GFLOP/s), with the same results.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        rows, columns, width = len(x), len(weight), -(-len(weight) // _LINE) * _LINE
        room = x.new_empty(rows * width).untyped_storage()
        # No view, which autograd would not let change.
        out = x.new_empty(0).set_(room, 0, (rows, columns), (width, 1))
        return torch.mm(x, weight.T, out=out)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return outer[0] @ weight, outer[0].T @ x


class TableLookup(torch.autograd.Function):
    """Embedding lookup with gradients summed in float32, as torch does on GPUs.

    On CPUs torch sums them in the table's dtype: for a token that occurs a thousand times in a
    batch, most of the sum would be lost in bfloat16. If the table also computes logits, gradients
    of the lookup are added to the gradient of the logits, which autograd holds by then.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.table, ctx.shape = weakref.ref(table), table.shape
        return F.embedding(tokens, table)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[None, Tensor | None]:
        (tokens,) = ctx.saved_tensors
        present = tokens.new_zeros(ctx.shape[0]).index_fill_(0, tokens.flatten(), 1)
        used, rows = present.nonzero().squeeze(1), present.cumsum(0)[tokens] - 1
        sums = torch.ops.aten.embedding_dense_backward(
            outer[0].float(), rows, len(used), padding_idx=-1, scale_grad_by_freq=False
        ).to(outer[0].dtype)
        of_pass, noted_table, gradient_of_logits = _noted
        is_same = of_pass == _current_pass() and noted_table() is ctx.table() is not None
        total = gradient_of_logits() if is_same else None
        if total is not None:
            total.index_add_(0, used, sums)
            return None, None
        gradient = outer[0].new_zeros(ctx.shape)
        gradient[used] = sums
        return None, gradient


_current_pass: Callable[[], int] = attrgetter("_C._current_graph_task_id")(torch)
_noted: tuple[int, Callable[[], Tensor | None], Callable[[], Tensor | None]]
_noted = -1, lambda: None, lambda: None


def note_gradient(table: Callable[[], Tensor | None], gradient: Tensor) -> None:
    """Note the gradient of a table that autograd holds in the current backward pass.

    Args:
      table: a weak reference; an id may be that of a later table, once this one is freed.
      gradient: with regard to the table, from the logits.
    """
    global _noted
    if not torch.compiler.is_compiling():  # a graph adds up the gradients itself
        _noted = _current_pass(), table, weakref.ref(gradient)
