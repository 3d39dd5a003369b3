"""Backward passes that are faster, or more exact, than torch's own on CPUs."""

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


class NarrowEmbedding(torch.autograd.Function):
    """Embedding lookup in a 16-bit table, with gradients summed in float32, as torch does on GPUs.

    On CPUs torch sums them in the table's dtype: for a token that occurs a thousand times in a
    batch, most of the sum would be lost in bfloat16.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.shape = table.shape
        return F.embedding(tokens, table)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[None, Tensor]:
        (tokens,) = ctx.saved_tensors
        # Only for the tokens of the batch: in float32, a gradient of the whole table would be
        # large.
        present = tokens.new_zeros(ctx.shape[0]).index_fill_(0, tokens.flatten(), 1)
        used, rows = present.nonzero().squeeze(1), present.cumsum(0)[tokens] - 1
        sums = torch.ops.aten.embedding_dense_backward(
            outer[0].float(), rows, len(used), padding_idx=-1, scale_grad_by_freq=False
        )
        gradient = outer[0].new_zeros(ctx.shape)
        gradient[used] = sums.to(gradient.dtype)
        return None, gradient
