"""RMSNorm, with a backward pass that CPUs are quick at."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fidgpt.model.init import Constant, carry


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` (Zhang and Sennrich, 2019, arXiv:1910.07467).

    torch has a kernel for the backward pass on GPUs; on the CPU it takes a dozen passes over
    memory, the written-out gradient here half as many, and 2.4 ms for 5.5 measured in bfloat16 on
    [16, 256, 256]. The forward pass is torch's everywhere.

    Args:
      hidden_dim: width of what is normalised.
      eps: added to the mean of squares.
    """

    def __init__(self, *, hidden_dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = carry(nn.Parameter(torch.empty(hidden_dim)), Constant(1.0))

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        eager = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if eager and x.device.type == "cpu":
            return _CPURMSNorm.apply(x, self.weight, self.eps)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class _CPURMSNorm(torch.autograd.Function):
    """With r = 1 / sqrt(mean(x^2) + eps): dx = r g w - x r^3 mean(g w x), dw = sum(r g x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return F.rms_norm(x, weight.shape, weight, eps)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        rows, gradient = x.flatten(0, -2), outer[0].reshape(-1, x.shape[-1])
        norms = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float32)
        inverse = norms.square_().div_(len(weight)).add_(ctx.eps).rsqrt_()
        along = gradient * rows
        share = (along @ weight) * inverse**3 / -len(weight)
        narrow = inverse.to(x.dtype)
        row_gradient = (gradient * weight).mul_(narrow.unsqueeze(-1))
        row_gradient.addcmul_(rows, share.to(x.dtype).unsqueeze(-1))
        return row_gradient.view_as(x), narrow @ along, None
