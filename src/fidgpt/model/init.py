"""How parameters get their first values: small callables that parts of a model carry."""

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
    "RandomInit",
    "TruncatedNormal",
    "attention_scale",
    "output_scale",
]


P = TypeVar("P", bound=Tensor)


@runtime_checkable
class Init(Protocol):
    """Fills a tensor in place, drawing only from the generator it is given."""

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None: ...


@runtime_checkable
class RandomInit(Init, Protocol):
    """An Init that draws around zero, and can be asked for one that draws less widely."""

    def narrowed(self, by: float) -> "RandomInit":
        """The same with values that spread 1 / `by` as wide."""
        ...


@dataclass(frozen=True, kw_only=True)
class Normal:
    """A normal distribution around zero.

    Attributes:
      std: its standard deviation; 0.02 is GPT-2's (Radford et al., 2019).
    """

    std: float = 0.02

    def __post_init__(self) -> None:
        require_not_negative("std", self.std)

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        nn.init.normal_(tensor, std=self.std, generator=generator)

    def narrowed(self, by: float) -> "Normal":
        return replace(self, std=self.std / by)


@dataclass(frozen=True, kw_only=True)
class TruncatedNormal:
    """A normal distribution around zero without its tails: no weight starts far out.

    Attributes:
      std: standard deviation before the cut; the values have 0.99 of it at a limit of 3, 0.88 of
        it at 2.
      limit: where the tails are cut, in standard deviations.
    """

    std: float = 0.02
    limit: float = 3.0

    def __post_init__(self) -> None:
        require_not_negative("std", self.std)
        require_positive("limit", self.limit)

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        end = self.limit * self.std
        nn.init.trunc_normal_(tensor, std=self.std, a=-end, b=end, generator=generator)

    def narrowed(self, by: float) -> "TruncatedNormal":
        return replace(self, std=self.std / by)


@dataclass(frozen=True, kw_only=True)
class FanIn:
    """A normal distribution of std `gain / sqrt(fan_in)`, so that a product keeps its input's size.

    The fan-in is the last dimension, over which torch's Linear sums (LeCun et al., 1998, Efficient
    BackProp, section 4.6).

    Attributes:
      gain: how much larger the output is than the input; sqrt(2) makes up for the half that a ReLU
        takes away (He et al., 2015, arXiv:1502.01852).
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        require_not_negative("gain", self.gain)

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        nn.init.normal_(tensor, std=self.gain / math.sqrt(_fan_in(tensor)), generator=generator)

    def narrowed(self, by: float) -> "FanIn":
        return replace(self, gain=self.gain / by)


@dataclass(frozen=True, kw_only=True)
class MuP:
    """Maximal update parametrisation of hidden matrices: base_std * sqrt(base_dim / hidden_dim).

    A width of `base_dim` starts as a normal of `base_std`, and what is good there stays good at
    other widths, if the learning rate of these matrices falls as base_dim / hidden_dim under Adam
    (Yang et al., 2022, arXiv:2203.03466, table 8). Tables of tokens and positions are not hidden:
    they stay with a `Normal`.

    Attributes:
      hidden_dim: width of the model.
      base_dim: width at which the other numbers were tuned.
      base_std: standard deviation there.
    """

    hidden_dim: int
    base_dim: int
    base_std: float = 0.02

    def __post_init__(self) -> None:
        require_size("hidden_dim", self.hidden_dim)
        require_size("base_dim", self.base_dim)
        require_not_negative("base_std", self.base_std)

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        std = self.base_std * math.sqrt(self.base_dim / self.hidden_dim)
        nn.init.normal_(tensor, std=std, generator=generator)

    def narrowed(self, by: float) -> "MuP":
        return replace(self, base_std=self.base_std / by)


@dataclass(frozen=True, kw_only=True)
class DepthScaled:
    """A start for what writes into the residual stream, narrower the deeper the model is.

    A model of `num_layers` layers adds 2 * num_layers branches to the stream, so each is drawn
    1 / sqrt(2 * num_layers) as wide (Radford et al., 2019, section 2.3).

    Attributes:
      init: the start of a branch that is the only one.
      num_layers: layers of the model.
    """

    init: RandomInit
    num_layers: int

    def __post_init__(self) -> None:
        require_size("num_layers", self.num_layers)

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        self.init.narrowed(by=math.sqrt(2 * self.num_layers))(tensor, generator)


@dataclass(frozen=True)
class Constant:
    """The same value everywhere."""

    value: float

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        nn.init.constant_(tensor, self.value)


GPT2_NORMAL = Normal(std=0.02)
LECUN_NORMAL = FanIn(gain=1.0)
ZEROS = Constant(0.0)


def with_init(parameter: P, init: Init) -> P:
    """Remembers on a parameter how it starts, and starts it unless it has no memory yet.

    A model built on the meta device is filled later, by `materialize`.
    """
    parameter.init = init  # pyright: ignore[reportAttributeAccessIssue]
    if not parameter.is_meta:
        init(parameter.data, None)
    return parameter


def _fan_in(tensor: Tensor) -> int:
    if tensor.dim() < 2:
        raise ValueError(
            f"a tensor of shape {list(tensor.shape)} has no fan-in: "
            "start vectors with Constant or Normal."
        )
    return tensor.shape[-1]


def output_scale(*, hidden_dim: int, base_dim: int) -> float:
    """Of the logits: base_dim / hidden_dim, so that their size does not follow the width.

    Args:
      hidden_dim: width of the model.
      base_dim: width at which other numbers were tuned.

    Raises:
      ValueError: a width is below 1.
    """
    require_size("hidden_dim", hidden_dim)
    require_size("base_dim", base_dim)
    return base_dim / hidden_dim


def attention_scale(*, head_dim: int, base_head_dim: int) -> float:
    """Of scores: sqrt(base_head_dim) / head_dim, as queries and keys grow alike in training.

    Args:
      head_dim: size of a head.
      base_head_dim: size at which it is the usual 1 / sqrt(head_dim).

    Raises:
      ValueError: a size is below 1.
    """
    require_size("head_dim", head_dim)
    require_size("base_head_dim", base_head_dim)
    return base_head_dim**0.5 / head_dim
