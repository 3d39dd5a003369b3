"""Feed-forward networks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.fields import FieldModule, field_module
from fidgpt.model.init import GPT2_NORMAL, Constant, Init, with_init
from fidgpt.model.linear import Linear, LinearFactory
from fidgpt.placement import Columns, Rows, Split
from fidgpt.ranges import require_size

__all__ = [
    "GELU",
    "MLP",
    "XIELU",
    "Activation",
    "GatedMLP",
    "GeGLU",
    "ScaledSiLU",
    "SquaredReLU",
    "SwiGLU",
    "gated_ffn_dim",
    "gelu",
    "gelu_tanh",
    "multiple_of",
    "squared_relu",
]


Activation = Callable[[Tensor], Tensor]


def gelu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`x * P(z < x)` for a standard normal z (Hendrycks and Gimpel, 2016, arXiv:1606.08415)."""
    return F.gelu(x)


def gelu_tanh(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The tanh approximation of GELU, used by GPT-2 and Gemma; its error is below 0.0005."""
    return F.gelu(x, approximate="tanh")


def squared_relu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`max(x, 0)^2` (Primer, So et al., 2021, arXiv:2109.08668)."""
    return F.relu(x).square()


@dataclass(frozen=True, kw_only=True)
class ScaledSiLU:
    """`silu(factor * x)`, as in Falcon-H1."""

    factor: float = 1.0

    def __call__(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return F.silu(x * self.factor)


class XIELU(nn.Module):
    """xIELU with learned curvatures (Huang and Schlag, 2024, arXiv:2411.13010), as in Apertus.

    `a x^2 + beta x` for x > 0 and `b (exp(min(x, eps)) - 1 - x) + beta x` below, where a is
    softplus(alpha_p) and b is beta + softplus(alpha_n). Both begin at 0.8.

    Args:
      beta: slope at 0.
      eps: just below 0, where the exponent is cut.
    """

    ROLE: ClassVar[str] = "Activation"
    beta: Float[Tensor, ""]
    eps: Float[Tensor, ""]

    def __init__(self, *, beta: float = 0.5, eps: float = -1e-6) -> None:
        super().__init__()
        self._constants = {"beta": beta, "eps": eps}
        begins = {"alpha_p": 0.8, "alpha_n": 0.8 - beta}
        for name, begin in begins.items():
            init = Constant(math.log(math.expm1(begin)))
            self.register_parameter(name, with_init(nn.Parameter(torch.empty(1)), init))
        for name in self._constants:
            self.register_buffer(name, torch.empty(()))

    def reset_parameters(self) -> None:
        """Set the constants, which files have as tensors."""
        for name, value in self._constants.items():
            self.get_buffer(name).fill_(value)

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        up, down = (F.softplus(self.get_parameter(name)) for name in ("alpha_p", "alpha_n"))
        below = (self.beta + down) * (torch.expm1(torch.minimum(x, self.eps)) - x)
        return torch.where(x > 0, up * x * x, below) + self.beta * x


def multiple_of(*, multiple: int, value: int | float) -> int:
    """Round `value` up to a multiple of `multiple`."""
    return -int(-value // multiple) * multiple


def gated_ffn_dim(*, hidden_dim: int, multiple: int = 64) -> int:
    """Return the width of a gated MLP with as many parameters as a plain one of 4 * hidden_dim.

    With three matrices instead of two this is 8 / 3 * hidden_dim (Shazeer, 2020, arXiv:2002.05202,
    section 2), rounded up to a multiple of `multiple`.
    """
    return multiple_of(multiple=multiple, value=8 * hidden_dim / 3)


@field_module
class _FeedForward(FieldModule):
    """`down(activation(up(x)))`; subclasses define the activation.

    Args:
      hidden_dim: width of the residual stream.
      ffn_dim: intermediate width; defaults to 4 * hidden_dim, or to `gated_ffn_dim` if gated.
      linear: makes the projections.
      bias: adds a bias to all projections.
      init: of the projections that read the stream.
      out_init: of the down projection; defaults to `init`.
    """

    ROLE: ClassVar[str] = "FeedForward"

    activation: ClassVar[Activation]
    gated: ClassVar[bool] = False

    hidden_dim: int
    ffn_dim: int | None = None
    linear: LinearFactory = Linear
    bias: bool = False
    init: Init = GPT2_NORMAL
    out_init: Init | None = None

    def __post_init__(self) -> None:
        require_size(hidden_dim=self.hidden_dim, ffn_dim=self.ffn_dim)
        width, own = self.hidden_dim, self.ffn_dim
        if own is None:
            own = self.ffn_dim = gated_ffn_dim(hidden_dim=width) if self.gated else 4 * width
        up = partial(self.linear, width, own, bias=self.bias, init=self.init)
        self.gate = up() if self.gated else None
        self.up = up()
        self.down = self.linear(own, width, bias=self.bias, init=self.out_init or self.init)

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))

    def own_split(self) -> Split:
        """Return how the intermediate width may be divided over processes."""
        width = self.ffn_dim or 0  # which the constructor has set
        parts = {"gate": Columns(width), "up": Columns(width), "down": Rows(width)}
        return Split(parts, returns="down")


class GELU(_FeedForward):
    """`down(gelu(up(x)))` with the tanh approximation of GELU, as in GPT-2.

    The exact form is `MLP(activation=gelu)`.
    """

    activation = staticmethod(gelu_tanh)


class SquaredReLU(_FeedForward):
    """`down(relu(up(x))^2)` (Primer, So et al., 2021, arXiv:2109.08668)."""

    activation = staticmethod(squared_relu)


class SwiGLU(_FeedForward):
    """`down(silu(gate(x)) * up(x))` (Shazeer, 2020, arXiv:2002.05202)."""

    activation = staticmethod(F.silu)
    gated = True


class GeGLU(_FeedForward):
    """`down(gelu(gate(x)) * up(x))` with the tanh approximation of GELU, as in Gemma (2024).

    Shazeer's GeGLU, with the exact form, is `GatedMLP(activation=gelu)`.
    """

    activation = staticmethod(gelu_tanh)
    gated = True


@field_module
class MLP(_FeedForward):
    """`down(activation(up(x)))` with any activation.

    Args:
      hidden_dim: width of the residual stream.
      activation: elementwise function or module, such as `gelu` or `torch.relu`.
      ffn_dim: intermediate width; defaults to 4 * hidden_dim.
      linear: makes the projections.
      bias: adds a bias to all projections.
      init: of the projections that read the stream.
      out_init: of the down projection; defaults to `init`.
    """

    activation: Activation  # pyright: ignore[reportIncompatibleVariableOverride]


class GatedMLP(MLP):
    """`down(activation(gate(x)) * up(x))` (Shazeer, 2020, arXiv:2002.05202).

    Args:
      hidden_dim: width of the residual stream.
      activation: of the gate; elementwise function or module, such as `gelu` or `torch.relu`.
      ffn_dim: intermediate width; defaults to `gated_ffn_dim` of hidden_dim.
      linear: makes the projections.
      bias: adds a bias to all projections.
      init: of the projections that read the stream.
      out_init: of the down projection; defaults to `init`.
    """

    gated = True
