"""What may be done to the score of a query and a key before the softmax, each a part of a list."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fidgpt.model.init import ZEROS, Init, carry
from fidgpt.model.masks import Token
from fidgpt.ranges import require_positive, require_size


@runtime_checkable
class ScoreChange(Protocol):
    """Changes scores, of all pairs or of one as FlexAttention asks; everything broadcasts."""

    def __call__(
        self, score: Tensor, /, *, head: Tensor, num_heads: int, query: Token, key: Token
    ) -> Tensor:
        """The new scores; `head` is the number of the query head, below `num_heads`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Softcap:
    """`cap * tanh(score / cap)`: scores stay between -cap and cap (Gemma 2, arXiv:2408.00118)."""

    cap: float = 50.0

    def __post_init__(self) -> None:
        self.check_arguments(cap=self.cap)

    @staticmethod
    def check_arguments(*, cap: float) -> None:
        """Raises ValueError unless the cap is finite and above 0."""
        require_positive("cap", cap)

    def __call__(
        self, score: Tensor, *, head: Tensor, num_heads: int, query: Token, key: Token
    ) -> Tensor:
        return self.cap * torch.tanh(score / self.cap)


@dataclass(frozen=True)
class ALiBi:
    """Takes off each score the distance, times a slope of the head's own.

    Slopes are 2^(-8 (h + 1) / n) for n heads, a power of two; for other counts, those of the next
    smaller power, and every other one of twice as many heads (Press et al., 2022,
    arXiv:2108.12409, section 3).
    """

    def __call__(
        self, score: Tensor, *, head: Tensor, num_heads: int, query: Token, key: Token
    ) -> Tensor:
        slopes = torch.tensor(alibi_slopes(num_heads), device=score.device, dtype=score.dtype)
        return score - slopes[head] * (query.position - key.position).abs()


def alibi_slopes(num_heads: int) -> list[float]:
    """How fast each head forgets, per token of distance."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2.0 ** (-4 * (head + 1) / power) for head in range(0, 2 * power, 2)]
    return slopes + between[: num_heads - power]


def attention_sinks(*, num_heads: int, init: Init = ZEROS) -> nn.Parameter:
    """A learned score for each head that is no token's: a head may look at nothing.

    (Xiao et al., 2024, arXiv:2309.17453; in this form gpt-oss, and Miller, 2023.)

    Raises:
      ValueError: there is no head.
    """
    require_size("num_heads", num_heads)
    return carry(nn.Parameter(torch.empty(num_heads)), init)
