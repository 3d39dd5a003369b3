"""Norms."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model import cpu
from fidgpt.model.blocks import Norm
from fidgpt.model.cpu.backward import RMSNormFunction, rms_norm
from fidgpt.model.fields import ExtensibleModule
from fidgpt.model.init import GPT2_NORMAL, ZEROS, Constant, Init, with_init
from fidgpt.model.linear import Linear, LinearFactory
from fidgpt.ranges import require_not_negative

__all__ = [
    "AcrossHeads",
    "LayerNormPerHead",
    "NormFactory",
    "OffsetLayerNorm",
    "OffsetRMSNorm",
    "PredictionHead",
    "RMSNorm",
    "WeightlessRMSNorm",
    "width_of_heads",
]


@runtime_checkable
class NormFactory(Protocol):
    """Creates norms of a given width, as `RMSNorm` does."""

    def __call__(self, *, hidden_dim: int) -> Norm: ...


class RMSNorm(ExtensibleModule):
    """`x / sqrt(mean(x^2) + eps) * weight` (Zhang and Sennrich, 2019, arXiv:1910.07467).

    Args:
      hidden_dim: width of the input.
      eps: added to the mean of squares.

    Raises:
      ValueError: eps is negative or infinite.
    """

    ROLE: ClassVar[str] = "Norm"
    ELEMENTWISE: ClassVar[bool] = True  # treats each vector by itself

    def __init__(self, *, hidden_dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        require_not_negative(eps=eps)
        self.eps = eps
        self.weight = with_init(nn.Parameter(torch.empty(hidden_dim)), Constant(1.0))

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        return _rms_norm(x, self.weight, self.eps)


class OffsetRMSNorm(RMSNorm):
    """RMSNorm that multiplies by `1 + weight`, with weights initialized to zero.

    As in Gemma (2024, arXiv:2403.08295): weight decay then pulls the scale towards 1, and the
    weight keeps precision in bfloat16. The scale is computed in float32 or wider.

    Args:
      hidden_dim: width of the input.
      eps: added to the mean of squares.
    """

    def __init__(self, *, hidden_dim: int, eps: float = 1e-6) -> None:
        super().__init__(hidden_dim=hidden_dim, eps=eps)
        with_init(self.weight, ZEROS)

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        return _rms_norm(
            x, 1 + self.weight.to(torch.promote_types(self.weight.dtype, torch.float32)), self.eps
        )


class WeightlessRMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps)`, without learned parameters.

    Args:
      hidden_dim: width of the input.
      eps: added to the mean of squares; None for the least of the input's format.

    Raises:
      ValueError: eps is negative or infinite.
    """

    ROLE: ClassVar[str] = "Norm"
    ELEMENTWISE: ClassVar[bool] = True  # treats each vector by itself

    def __init__(self, *, hidden_dim: int, eps: float | None = 1e-5) -> None:
        super().__init__()
        require_not_negative(eps=eps)
        self.hidden_dim = hidden_dim
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        return F.rms_norm(x, (self.hidden_dim,), None, self.eps)


class OffsetLayerNorm(nn.LayerNorm):
    """LayerNorm that multiplies by `1 + weight`, with weights initialized to zero (Nemotron).

    Args:
      normalized_shape: width of the input.
      eps: added to the variance.
    """

    ELEMENTWISE: ClassVar[bool] = True  # treats each vector by itself

    def reset_parameters(self) -> None:
        """Set weights and biases to zero."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, input: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        """Return the normalized vectors."""
        return F.layer_norm(input, self.normalized_shape, 1 + self.weight, self.bias, self.eps)


class LayerNormPerHead(nn.Module):
    """LayerNorm of each head with weights of its own and no bias, as in Command R+.

    Args:
      num_heads: number of heads.
      head_dim: dimensions of each.
      eps: added to the variance.

    Raises:
      ValueError: eps is negative or infinite.
    """

    ROLE: ClassVar[str] = "Norm"
    MATRICES: ClassVar[Sequence[str]] = ()  # the weights of heads are vectors

    def __init__(self, *, num_heads: int, head_dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        require_not_negative(eps=eps)
        self.eps = eps
        self.weight = with_init(nn.Parameter(torch.empty(num_heads, head_dim)), Constant(1.0))

    def forward(
        self, x: Float[Tensor, "*batch heads head_dim"]
    ) -> Float[Tensor, "*batch heads head_dim"]:
        return F.layer_norm(x, x.shape[-1:], eps=self.eps) * self.weight


class AcrossHeads(nn.Module):
    """Normalizes all heads of a token as one vector, as OLMo 2 does (2025, arXiv:2501.00656).

    Args:
      norm: norm over the total width of all heads; see `width_of_heads`.
    """

    ROLE: ClassVar[str] = "Norm"

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.norm = norm

    def forward(
        self, x: Float[Tensor, "*batch heads head_dim"]
    ) -> Float[Tensor, "*batch heads head_dim"]:
        return self.norm(x.flatten(-2)).view_as(x)


class PredictionHead(nn.Module):
    """`norm(gelu(dense(first(x))))`, in place of the last norm, as in decoders like BERT.

    The first norm is the norm of the stream; see Warner et al., 2024, ModernBERT, arXiv:2412.13663.

    Args:
      hidden_dim: width of the residual stream.
      norm: makes both norms.
      linear: makes the projection.
      init: of the projection.
    """

    ROLE: ClassVar[str] = "Norm"

    def __init__(
        self,
        *,
        hidden_dim: int,
        norm: Callable[[int], Norm] = nn.LayerNorm,
        linear: LinearFactory = Linear,
        init: Init = GPT2_NORMAL,
    ) -> None:
        super().__init__()
        self.first = norm(hidden_dim)
        self.dense = linear(hidden_dim, hidden_dim, bias=False, init=init)
        self.norm = norm(hidden_dim)

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        return self.norm(F.gelu(self.dense(self.first(x))))


def width_of_heads(*, hidden_dim: int, head_dim: int, num_heads: int | None = None) -> int:
    """Return the total width of all heads; num_heads defaults to hidden_dim / head_dim."""
    return hidden_dim if num_heads is None else num_heads * head_dim


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if cpu.has_own_backward(x):
        return RMSNormFunction.apply(x, weight, eps)
    return rms_norm(x, weight, eps)
