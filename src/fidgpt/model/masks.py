"""Masks and score modifications."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fidgpt.model.init import ZEROS, Init, with_init
from fidgpt.ranges import require_positive, require_size

__all__ = [
    "ALiBi",
    "And",
    "Chunk",
    "Mask",
    "Or",
    "Prefix",
    "ScoreChange",
    "Softcap",
    "Token",
    "Window",
    "attention_sinks",
    "causal",
]


class Token(NamedTuple):
    """The position and document of a token, the input of masks; integer tensors of any shape.

    Attributes:
      position: position in its document, from 0.
      document: number of its document; None if every row is one document.
    """

    position: Tensor
    document: Tensor | None = None


@runtime_checkable
class Mask(Protocol):
    """Returns whether queries may attend to keys of the same document."""

    def __call__(self, query: Token, key: Token, /) -> Tensor: ...


def causal(query: Token, key: Token) -> Tensor:
    """Allow a query to attend to itself and to earlier keys."""
    return key.position <= query.position


@dataclass(frozen=True)
class Window:
    """Keys at a distance below `size` from the query, in both directions.

    The query counts as one of the `size` tokens, as in Mistral. Combine it with `causal` to exclude
    later keys (Beltagy et al., 2020, arXiv:2004.05150).
    """

    size: int

    def __call__(self, query: Token, key: Token) -> Tensor:
        return (query.position - key.position).abs() < self.size


@dataclass(frozen=True)
class Chunk:
    """Keys of the same chunk of `size` tokens of a document as the query, as in Llama 4.

    Combine it with `causal` to exclude later keys.
    """

    size: int

    def __call__(self, query: Token, key: Token) -> Tensor:
        return query.position // self.size == key.position // self.size


@dataclass(frozen=True)
class Prefix:
    """Causal, except that all tokens of a document may attend to its first `length` tokens.

    This is the mask of prefix language models (Raffel et al., 2020, arXiv:1910.10683, section
    3.2.1).
    """

    length: int

    def __call__(self, query: Token, key: Token) -> Tensor:
        return (key.position <= query.position) | (key.position < self.length)


@dataclass(frozen=True)
class And:
    """Keys that all of the masks allow."""

    masks: tuple[Mask, ...]

    def __call__(self, query: Token, key: Token) -> Tensor:
        visible = self.masks[0](query, key)
        for mask in self.masks[1:]:
            visible = visible & mask(query, key)
        return visible


@dataclass(frozen=True)
class Or:
    """Keys that at least one of the masks allows."""

    masks: tuple[Mask, ...]

    def __call__(self, query: Token, key: Token) -> Tensor:
        visible = self.masks[0](query, key)
        for mask in self.masks[1:]:
            visible = visible | mask(query, key)
        return visible


def is_causal_among(mask: Mask, window: int | None, *, num_keys: int) -> bool:
    """Return whether a mask and a window are equivalent to `causal` for `num_keys` tokens."""
    masks = mask.masks if isinstance(mask, And) else (mask,)
    others = [mask for mask in masks if mask is not causal]
    wide = all(isinstance(mask, Window) and mask.size >= num_keys for mask in others)
    return causal in masks and wide and (window is None or window >= num_keys)


@runtime_checkable
class ScoreChange(Protocol):
    """Modifies attention scores: all of them, or a single one for FlexAttention."""

    def __call__(
        self, score: Tensor, /, *, head: Tensor, num_heads: int, query: Token, key: Token
    ) -> Tensor:
        """Return the new scores; `head` is the index of the query head; arguments broadcast."""
        ...


@dataclass(frozen=True, kw_only=True)
class Softcap:
    """`cap * tanh(score / cap)`, which bounds scores to ±cap (Gemma 2, arXiv:2408.00118)."""

    cap: float = 50.0

    def __post_init__(self) -> None:
        require_positive(cap=self.cap)

    def __call__(
        self, score: Tensor, *, head: Tensor, num_heads: int, query: Token, key: Token
    ) -> Tensor:
        return self.cap * torch.tanh(score / self.cap)


@dataclass(frozen=True)
class ALiBi:
    """ALiBi: subtract the distance times a slope per head from each score.

    For n heads, a power of two, the slope of head h is 2^(-8 (h + 1) / n). For other counts, the
    slopes are those of the next smaller power of two, followed by every other one of twice that
    number (Press et al., 2022, arXiv:2108.12409, section 3).
    """

    def __call__(
        self, score: Tensor, *, head: Tensor, num_heads: int, query: Token, key: Token
    ) -> Tensor:
        return score + self.shift(score, head=head, num_heads=num_heads, query=query, key=key)

    def shift(
        self, score: Tensor, *, head: Tensor, num_heads: int, query: Token, key: Token
    ) -> Tensor:
        """Return the term to add to scores; of `score`, only the dtype and the device matter."""
        slopes = torch.tensor(alibi_slopes(num_heads), device=score.device, dtype=score.dtype)
        return -slopes[head] * (query.position - key.position).abs()


def alibi_slopes(num_heads: int) -> list[float]:
    """Return the slope of each head, per token of distance."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2.0 ** (-4 * (head + 1) / power) for head in range(0, 2 * power, 2)]
    return slopes + between[: num_heads - power]


def attention_sinks(*, num_heads: int, init: Init = ZEROS) -> nn.Parameter:
    """Return attention sinks: a learned score per head without a key, so heads may attend to none.

    After Xiao et al., 2024, arXiv:2309.17453, in the form of gpt-oss and Miller, 2023. The
    parameter has shape [num_heads].

    Raises:
      ValueError: `num_heads` is below 1.
    """
    require_size(num_heads=num_heads)
    return with_init(nn.Parameter(torch.empty(num_heads)), init)
