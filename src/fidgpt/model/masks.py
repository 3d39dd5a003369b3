"""Which keys a query may look at: small parts, written for one pair and computed for all.

A mask works on whatever broadcasts: the positions of all queries against those of all keys, or, in
FlexAttention, one number of each.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class Token(NamedTuple):
    """What a mask knows of a token: integers of any shape.

    Attributes:
      position: in its document, from 0.
      document: the number of its document; None where a row is one document.
    """

    position: Tensor
    document: Tensor | None = None


@runtime_checkable
class Mask(Protocol):
    """Says whether a query may look at a key; both are of one document and both exist."""

    def __call__(self, query: Token, key: Token, /) -> Tensor: ...


def causal(query: Token, key: Token) -> Tensor:
    """At itself and what came before."""
    return key.position <= query.position


@dataclass(frozen=True)
class Window:
    """At the last `size` tokens, itself among them, and as far ahead where a mask lets it.

    (Beltagy et al., 2020, arXiv:2004.05150; as Mistral counts.)
    """

    size: int

    def __call__(self, query: Token, key: Token) -> Tensor:
        return (query.position - key.position).abs() < self.size


@dataclass(frozen=True)
class Prefix:
    """At what came before, and within a document's first `length` tokens at all of them.

    (Prefix language models; Raffel et al., 2020, arXiv:1910.10683, section 3.2.1.)
    """

    length: int

    def __call__(self, query: Token, key: Token) -> Tensor:
        return (key.position <= query.position) | (key.position < self.length)


@dataclass(frozen=True)
class Every:
    """At what each of the masks allows."""

    masks: tuple[Mask, ...]

    def __call__(self, query: Token, key: Token) -> Tensor:
        seen = self.masks[0](query, key)
        for mask in self.masks[1:]:
            seen = seen & mask(query, key)
        return seen


@dataclass(frozen=True)
class Either:
    """At what one of the masks at least allows."""

    masks: tuple[Mask, ...]

    def __call__(self, query: Token, key: Token) -> Tensor:
        seen = self.masks[0](query, key)
        for mask in self.masks[1:]:
            seen = seen | mask(query, key)
        return seen


def within(mask: Mask, window: int | None) -> Mask:
    """The mask, narrowed to a window where one is given."""
    return mask if window is None else Every((mask, Window(window)))


def is_causal_among(mask: Mask, count: int) -> bool:
    """Whether among `count` tokens in a row a mask is `causal` and nothing more."""
    masks = mask.masks if isinstance(mask, Every) else (mask,)
    wide = (isinstance(one, Window) and one.size >= count for one in masks if one is not causal)
    return causal in masks and all(wide)
