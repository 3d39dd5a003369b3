"""How parameters get their first values: small callables that parts of a model carry."""

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

P = TypeVar("P", bound=Tensor)


@runtime_checkable
class Init(Protocol):
    """Fills a tensor in place, drawing only from the generator it is given."""

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Normal:
    """A normal distribution around zero.

    Attributes:
      std: its standard deviation; 0.02 is GPT-2's (Radford et al., 2019).
    """

    std: float = 0.02

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        nn.init.normal_(tensor, std=self.std, generator=generator)


@dataclass(frozen=True, kw_only=True)
class DepthScaled:
    """A normal distribution for what writes into the residual stream.

    A model of `num_layers` layers adds 2 * num_layers branches to the stream, so each is drawn
    1 / sqrt(2 * num_layers) as wide (Radford et al., 2019, section 2.3).
    """

    init: Normal
    num_layers: int

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        Normal(std=self.init.std / math.sqrt(2 * self.num_layers))(tensor, generator)


@dataclass(frozen=True)
class Constant:
    """The same value everywhere."""

    value: float

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        nn.init.constant_(tensor, self.value)


GPT2_NORMAL = Normal(std=0.02)
ZEROS = Constant(0.0)


def carry(parameter: P, init: Init) -> P:
    """Remembers on a parameter how it starts, and starts it unless it has no memory yet.

    A model built on the meta device is filled later, by `materialize`.
    """
    parameter.init = init  # pyright: ignore[reportAttributeAccessIssue]
    if not parameter.is_meta:
        init(parameter.data, None)
    return parameter
