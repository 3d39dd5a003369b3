"""Initialization of parameters."""

import math
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from fidgpt.ranges import require_not_negative, require_positive, require_size

__all__ = [
    "Constant",
    "DepthScaled",
    "FanIn",
    "Init",
    "MuP",
    "Normal",
    "Ramp",
    "RandomInit",
    "TruncatedNormal",
    "Uniform",
    "UniformFanIn",
    "attention_scale",
    "output_scale",
]


P = TypeVar("P", bound=Tensor)


@runtime_checkable
class Init(Protocol):
    """Fills a tensor in place, with random numbers only from the given generator."""

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None: ...


@runtime_checkable
class RandomInit(Init, Protocol):
    """An Init with a zero-mean distribution whose standard deviation can be reduced."""

    def narrowed(self, by: float) -> "RandomInit":
        """Return the same distribution with the standard deviation divided by `by`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Normal:
    """A zero-mean normal distribution.

    Attributes:
      std: standard deviation; 0.02 in GPT-2 (Radford et al., 2019).
    """

    std: float = 0.02

    def __post_init__(self) -> None:
        require_not_negative(std=self.std)

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        nn.init.normal_(tensor, std=self.std, generator=generator)

    def narrowed(self, by: float) -> "Normal":
        return replace(self, std=self.std / by)


@dataclass(frozen=True, kw_only=True)
class TruncatedNormal:
    """A zero-mean normal distribution without its tails.

    Attributes:
      std: standard deviation before truncation, which reduces it to 0.99 of that at a limit of 3,
        and to 0.88 at 2.
      limit: where the tails are truncated, in standard deviations.
    """

    std: float = 0.02
    limit: float = 3.0

    def __post_init__(self) -> None:
        require_not_negative(std=self.std)
        require_positive(limit=self.limit)

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        end = self.limit * self.std
        nn.init.trunc_normal_(tensor, std=self.std, a=-end, b=end, generator=generator)

    def narrowed(self, by: float) -> "TruncatedNormal":
        return replace(self, std=self.std / by)


@dataclass(frozen=True, kw_only=True)
class FanIn:
    """A normal distribution of std `gain / sqrt(fan_in)`, which preserves the scale of the input.

    The fan-in is the last dimension, over which torch's Linear sums (LeCun et al., 1998, Efficient
    BackProp, section 4.6).

    Attributes:
      gain: ratio of the output's scale to the input's; sqrt(2) compensates for a ReLU (He et al.,
        2015, arXiv:1502.01852).
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        require_not_negative(gain=self.gain)

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        nn.init.normal_(tensor, std=self.gain / math.sqrt(_fan_in(tensor)), generator=generator)

    def narrowed(self, by: float) -> "FanIn":
        return replace(self, gain=self.gain / by)


@dataclass(frozen=True, kw_only=True)
class UniformFanIn(FanIn):
    """A uniform distribution with the standard deviation of `FanIn`, and so without outliers."""

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        end = math.sqrt(3) * self.gain / math.sqrt(_fan_in(tensor))
        nn.init.uniform_(tensor, -end, end, generator=generator)


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """A uniform distribution between two values, as of gates that begin a little open."""

    low: float
    high: float

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        nn.init.uniform_(tensor, self.low, self.high, generator=generator)


@dataclass(frozen=True, kw_only=True)
class MuP:
    """Maximal update parametrization of hidden matrices: base_std * sqrt(base_dim / hidden_dim).

    Hyperparameters tuned at width `base_dim` then transfer to other widths, if under Adam the
    learning rate of these matrices is multiplied by base_dim / hidden_dim (Yang et al., 2022,
    arXiv:2203.03466, table 8). Embedding tables keep a `Normal`.

    Attributes:
      hidden_dim: width of the model.
      base_dim: width at which hyperparameters were tuned.
      base_std: standard deviation at that width.
    """

    hidden_dim: int
    base_dim: int
    base_std: float = 0.02

    def __post_init__(self) -> None:
        require_size(hidden_dim=self.hidden_dim, base_dim=self.base_dim)
        require_not_negative(base_std=self.base_std)

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        std = self.base_std * math.sqrt(self.base_dim / self.hidden_dim)
        nn.init.normal_(tensor, std=std, generator=generator)

    def narrowed(self, by: float) -> "MuP":
        return replace(self, base_std=self.base_std / by)


@dataclass(frozen=True, kw_only=True)
class DepthScaled:
    """Initialization of projections into the residual stream, scaled by depth.

    A model adds 2 * num_layers branches to the stream, so the standard deviation of `init` is
    divided by sqrt(2 * num_layers) (Radford et al., 2019, section 2.3).

    Attributes:
      init: initialization for a single branch.
      num_layers: number of layers of the model.
    """

    init: RandomInit
    num_layers: int

    def __post_init__(self) -> None:
        require_size(num_layers=self.num_layers)

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        self.init.narrowed(by=math.sqrt(2 * self.num_layers))(tensor, generator)


@dataclass(frozen=True)
class Constant:
    """A constant value."""

    value: float

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        nn.init.constant_(tensor, self.value)


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """Values of a vector from the first one to the last, such as a weight for each layer."""

    first: float
    last: float

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        with torch.no_grad():
            tensor.copy_(torch.linspace(self.first, self.last, len(tensor), dtype=torch.float64))


GPT2_NORMAL = Normal(std=0.02)
LECUN_NORMAL = FanIn(gain=1.0)
ZEROS = Constant(0.0)


def with_init(parameter: P, init: Init) -> P:
    """Attach an init to a parameter, and apply it unless the parameter is on the meta device.

    Models built on the meta device are initialized later, by `materialize`.
    """
    parameter.init = init  # pyright: ignore[reportAttributeAccessIssue]
    if not parameter.is_meta:
        init(parameter.data, None)
    return parameter


def _fan_in(tensor: Tensor) -> int:
    if tensor.dim() < 2:
        raise ValueError("a vector has no fan-in; initialize it with Constant or Normal.")
    return tensor.shape[-1]


def output_scale(*, hidden_dim: int, base_dim: int) -> float:
    """Return muP's scale of the logits, base_dim / hidden_dim (arXiv:2203.03466).

    Args:
      hidden_dim: width of the model.
      base_dim: width at which hyperparameters were tuned.

    Raises:
      ValueError: a width is below 1.
    """
    require_size(hidden_dim=hidden_dim, base_dim=base_dim)
    return base_dim / hidden_dim


def attention_scale(*, head_dim: int, base_head_dim: int) -> float:
    """Return muP's scale of attention scores, sqrt(base_head_dim) / head_dim.

    It is not 1 / sqrt(head_dim) because queries and keys become correlated in training (Yang et
    al., 2022, arXiv:2203.03466, definition 4.1).

    Args:
      head_dim: size of a head.
      base_head_dim: size at which it is the usual 1 / sqrt(head_dim).

    Raises:
      ValueError: a size is below 1.
    """
    require_size(head_dim=head_dim, base_head_dim=base_head_dim)
    return base_head_dim**0.5 / head_dim
