"""What attention knows of its tokens: positions, documents, masks and scores."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn

from fidgpt.model.cache import Cache, CacheUpdate, LayerCache, RingBuffer
from fidgpt.model.init import ZEROS, Init, with_init
from fidgpt.ranges import require_positive, require_size

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class TokenPositions:
    """Where some tokens stand.

    Attributes:
      positions: of each token in its document, from 0, for every row or one for all; negative
        where there is no token.
      documents: a number for the document that each token belongs to; None: a row is one.
      whole: known without a look at the numbers that every row is one document from its first
        token on, with no gap.
    """

    positions: Int[Tensor, "rows seq"]
    documents: Int[Tensor, "rows seq"] | None = None
    whole: bool = False

    def __len__(self) -> int:
        return self.positions.shape[1]


@dataclass(frozen=True, eq=False)
class AttentionContext:
    """What every layer of a forward pass is told beside the stream.

    Attributes:
      places: where the tokens stand.
      tokens: the tokens themselves, for parts that look at them again; None where there are none.
      cache: what was kept of the tokens before these, during generation; a model gives each of
        its layers a layout with the layer's own.
    """

    places: TokenPositions
    tokens: Int[Tensor, "batch seq"] | None = None
    cache: Cache | LayerCache | None = None
    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def at_layer(self, index: int) -> "AttentionContext":
        """The layout of layer `index`; the same one where nothing is cached."""
        if not isinstance(self.cache, Cache):
            return self
        return AttentionContext(self.places, self.tokens, self.cache.layer(index), self._made)

    def remember(
        self, owner: object, new: Sequence[Tensor], *, window: int | None
    ) -> tuple[Sequence[Tensor], TokenPositions]:
        """Tensors [..., seq, size] of all tokens that these may look at, and where those stand.

        Args:
          owner: the part that remembers; `self` of the caller.
          new: what it knows of the tokens of this pass.
          window: how many tokens back it looks; None: at all.
        """
        if not isinstance(self.cache, LayerCache):
            return new, self.places
        ring = self.cache.ring(window)
        turn, places = self.once(("turn", ring.room), lambda: self._turned(ring))
        return turn.extend(self.cache.of(owner), new), places

    def _turned(self, ring: RingBuffer) -> tuple[CacheUpdate, TokenPositions]:
        """What this pass does to parts with one room, and where all that these keep stand."""
        places = self.places
        numbers = [x.unsqueeze(-1) for x in (places.positions, places.documents) if x is not None]
        turn = ring.turn(places.positions)
        shown = turn.extend(ring.columns, numbers, empty=-1)
        if turn.is_first:
            return turn, places
        positions, *documents = (x.squeeze(-1) for x in shown)
        return turn, TokenPositions(positions, *documents, whole=places.whole and not turn.has_gaps)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, made for the first who asks: layers share angles and masks."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


@runtime_checkable
class LayoutMaker(Protocol):
    """Says where the tokens of a batch stand."""

    def __call__(self, tokens: Int[Tensor, "batch seq"], /) -> AttentionContext: ...


def one_document(tokens: Int[Tensor, "batch seq"]) -> AttentionContext:
    """Every row is one document, or is treated as one: positions count from 0 to its end."""
    return AttentionContext(counted(tokens.shape[1], tokens.device), tokens=tokens)


def counted(seq: int, device: torch.device) -> TokenPositions:
    """Positions from 0 to seq - 1 in every row."""
    return TokenPositions(torch.arange(seq, device=device).unsqueeze(0), whole=True)


@dataclass(frozen=True, kw_only=True)
class PackedDocuments:
    """A row holds documents one after the other, and none is to see another.

    Positions begin anew with each document (as in the training of Llama 3; Grattafiori et al.,
    2024, arXiv:2407.21783, section 3.2).

    Attributes:
      end_of_text: the token between two documents. It stands at the beginning of the second, as
        it does before a text that is to be continued.
    """

    end_of_text: int

    def __call__(self, tokens: Int[Tensor, "batch seq"]) -> AttentionContext:
        """The layout of rows in which `end_of_text` parts the documents."""
        begins = tokens == self.end_of_text
        columns = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        first = torch.where(begins, columns, 0).cummax(1).values
        return AttentionContext(
            TokenPositions(columns - first, documents=begins.cumsum(1)), tokens=tokens
        )


def padded(
    tokens: Int[Tensor, "batch seq"], *, present: Int[Tensor, "batch seq"]
) -> AttentionContext:
    """Rows of different lengths in one batch.

    Args:
      tokens: anything where no token is.
      present: 1 where there is a token and 0 where there is none, as the attention masks of
        transformers.
    """
    present = present.long()
    return AttentionContext(TokenPositions(present.cumsum(1) * present - 1), tokens=tokens)


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
class And:
    """At what each of the masks allows."""

    masks: tuple[Mask, ...]

    def __call__(self, query: Token, key: Token) -> Tensor:
        seen = self.masks[0](query, key)
        for mask in self.masks[1:]:
            seen = seen & mask(query, key)
        return seen


@dataclass(frozen=True)
class Or:
    """At what one of the masks at least allows."""

    masks: tuple[Mask, ...]

    def __call__(self, query: Token, key: Token) -> Tensor:
        seen = self.masks[0](query, key)
        for mask in self.masks[1:]:
            seen = seen | mask(query, key)
        return seen


def within(mask: Mask, window: int | None) -> Mask:
    """The mask, narrowed to a window where one is given."""
    return mask if window is None else And((mask, Window(window)))


def is_causal_among(mask: Mask, count: int) -> bool:
    """Whether among `count` tokens in a row a mask is `causal` and nothing more."""
    masks = mask.masks if isinstance(mask, And) else (mask,)
    wide = (isinstance(one, Window) and one.size >= count for one in masks if one is not causal)
    return causal in masks and all(wide)


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
    return with_init(nn.Parameter(torch.empty(num_heads)), init)
