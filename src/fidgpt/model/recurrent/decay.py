"""Decay rates of states, which depend on the token."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.model.init import Init, with_init
from fidgpt.placement import Dims
from fidgpt.ranges import require_positive, require_size


@dataclass(frozen=True, kw_only=True)
class LogOfUniform:
    """The logarithm of a uniform distribution, as of Mamba 2's rates.

    Attributes:
      low: lower end, above 0.
      high: upper end.
    """

    low: float = 1.0
    high: float = 16.0

    def __post_init__(self) -> None:
        require_positive(low=self.low, high=self.high)

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        nn.init.uniform_(tensor, self.low, self.high, generator=generator).log_()


@dataclass(frozen=True, kw_only=True)
class Timesteps:
    """What softplus maps to a log-uniform distribution (Gu and Dao, 2023, arXiv:2312.00752).

    Attributes:
      low: lower end, above 0.
      high: upper end.
    """

    low: float = 0.001
    high: float = 0.1

    def __post_init__(self) -> None:
        require_positive(low=self.low, high=self.high)

    def __call__(self, tensor: Tensor, generator: torch.Generator | None, /) -> None:
        ends = math.log(self.low), math.log(self.high)
        nn.init.uniform_(tensor, *ends, generator=generator).exp_().expm1_().log_()


class Decay(nn.Module):
    """The logarithm of a decay, `-exp(log_rate) * softplus(x + bias)`, in float32 or wider.

    Args:
      num_heads: number of heads, each with a rate.
      size: number of decays of a head, each with a bias.
      init: of the logarithms of the rates.

    Raises:
      ValueError: a size is below 1.
    """

    SPLIT_DIMS: ClassVar[Mapping[str, Dims]] = {"columns": {"log_rate": 0, "bias": 0}}
    keeps_float32 = True

    def __init__(
        self,
        *,
        num_heads: int,
        size: int = 1,
        init: Init | None = None,
    ) -> None:
        super().__init__()
        require_size(num_heads=num_heads, size=size)
        self.size = size
        self.log_rate = with_init(nn.Parameter(torch.empty(num_heads)), init or LogOfUniform())
        bias = nn.Parameter(torch.empty(num_heads * size))
        self.bias = with_init(bias, Timesteps())

    def forward(
        self, x: Float[Tensor, "batch seq decays"]
    ) -> Float[Tensor, "batch seq heads size"]:
        """Return the logarithms of decays, which are at most 0."""
        return self.of_timestep(self.timestep(x))

    def of_timestep(
        self, timestep: Float[Tensor, "batch seq decays"]
    ) -> Float[Tensor, "batch seq heads size"]:
        """Return the logarithms of the decays of timesteps."""
        rate = self.log_rate.exp().unsqueeze(-1).to(timestep.dtype)
        return timestep.unflatten(-1, (-1, self.size)) * -rate

    def timestep(self, x: Float[Tensor, "batch seq decays"]) -> Float[Tensor, "batch seq decays"]:
        """Return `softplus(x + bias)`."""
        return F.softplus(x.to(torch.promote_types(x.dtype, torch.float32)) + self.bias)
