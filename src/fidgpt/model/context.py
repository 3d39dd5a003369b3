"""The context of a forward pass: positions, documents, masks and the KV cache."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fidgpt.model.cache import Cache
from fidgpt.model.masks import Mask, Token, Window, causal

__all__ = ["AttentionContext", "ContextFactory", "PackedDocuments", "one_document", "padded"]


T = TypeVar("T")
Tokens = Int[Tensor, "batch seq"]
Stream = Float[Tensor, "batch seq hidden"]


@dataclass(frozen=True, eq=False)
class TokenPositions:
    """Positions of some tokens: of those of a pass, or of all keys in a cache.

    Attributes:
      positions: of each token in its document, from 0, for every row or one for all; negative
        for padding.
      documents: the number of each token's document; None where every row is one document.
      contiguous: whether, without looking at the numbers, every row is known to be one document
        without padding.
    """

    positions: Int[Tensor, "rows seq"]
    documents: Int[Tensor, "rows seq"] | None = None
    contiguous: bool = False

    def __len__(self) -> int:
        return self.positions.shape[1]

    def along(self, dim: int) -> Token:
        """Return all tokens as [rows, 1, queries, keys], of which `dim`, -2 or -1, is theirs."""
        other = -1 if dim == -2 else -2
        position = self.positions.unsqueeze(1).unsqueeze(other)
        if self.documents is None:
            return Token(position)
        return Token(position, self.documents.unsqueeze(1).unsqueeze(other))

    def at(self, row: Tensor, column: Tensor) -> Token:
        """Return one token; a single row of positions stands for all rows."""
        row = row if len(self.positions) > 1 else torch.zeros_like(row)
        documents = self.documents
        return Token(
            self.positions[row, column], None if documents is None else documents[row, column]
        )


@dataclass(frozen=True, eq=False)
class AttentionContext(TokenPositions):
    """What every layer gets beside the residual stream: where the tokens of a pass stand.

    Attributes:
      tokens: their ids [batch, seq], for parts that look them up again; None where there are none.
      cache: keys and values of the tokens before these, during generation.
      layer: the layer whose cache `update_cache` extends.
    """

    tokens: Tokens | None = None
    cache: Cache | None = None
    layer: int = 0
    _cached: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def at_layer(self, index: int) -> "AttentionContext":
        """Return the context of layer `index`, which is the same one without a cache."""
        if self.cache is None:
            return self
        self.cache.layer(index)
        return replace(self, layer=index)

    def columns(self, begin: int, end: int | None = None) -> "AttentionContext":
        """Return the context of some of the columns, without a cache."""
        parts = (self.positions, self.documents, self.tokens)
        positions, documents, tokens = (None if x is None else x[:, begin:end] for x in parts)
        assert positions is not None
        return AttentionContext(positions, documents, self.contiguous, tokens)

    def update_cache(
        self, owner: object, new: Sequence[Tensor], *, window: int | None = None
    ) -> Sequence[Tensor]:
        """Add what a layer computed of these tokens to its cache, and return that of all keys.

        Args:
          owner: the module that keeps them; `self` of the caller.
          new: tensors [..., seq, size], such as keys and values.
          window: the window in tokens of the caller; None for full attention.

        Returns:
          The same tensors [..., keys, size] of all tokens that these may see; `new` without a
          cache. `visible` and `distance` with the same window are of the same keys.
        """
        if self.cache is None:
            return new
        self.key_positions(window)  # keeps their positions
        kept = self.cache.layer(self.layer).setdefault(owner, [])
        return self.cache.extend(kept, new, window=window, before=self._length_before())

    def visible(
        self, mask: Mask = causal, *, window: int | None = None
    ) -> Bool[Tensor, "rows one queries keys"]:
        """Return which keys each query may see.

        These are tokens, not padding, of the query's document and within the window, that the mask
        allows. The keys are those that `update_cache` returns for the same window. The tensor is
        computed once for all layers.

        Args:
          mask: such as `causal` or a `Prefix`.
          window: sliding-window size in tokens, including the query; None for full attention.
        """

        def compute() -> Tensor:
            return self.may_see(self.along(-2), self.key_positions(window).along(-1), mask, window)

        return self.cached(("visible", mask, window), compute)

    def distance(self, *, window: int | None = None) -> Int[Tensor, "rows one queries keys"]:
        """Return how many tokens each key is before each query; negative for later keys."""
        return self.along(-2).position - self.key_positions(window).along(-1).position

    def key_positions(self, window: int | None = None) -> TokenPositions:
        """Return the positions of all keys; the context itself where they are those of its tokens.

        Args:
          window: the window of the layer; None for full attention.
        """
        if self.cache is None:
            return self
        return self.cached(("keys", self.cache.room(window)), lambda: self._cached_keys(window))

    def cached(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return what `compute` gives, computed once a pass: layers share angles and masks."""
        if key not in self._cached:
            self._cached[key] = compute()
        return self._cached[key]

    @staticmethod
    def may_see(query: Token, key: Token, mask: Mask, window: int | None) -> Bool[Tensor, "..."]:
        """Return whether queries may see keys, for tokens of any shapes that broadcast."""
        visible = mask(query, key) & (key.position >= 0)
        if window is not None:
            visible = visible & Window(window)(query, key)
        if query.document is None or key.document is None:
            return visible
        return visible & (query.document == key.document)

    def _cached_keys(self, window: int | None) -> TokenPositions:
        assert self.cache is not None
        kept = self.cache.positions_of(window)
        is_first = not kept
        parts = (self.positions, self.documents)
        new = [x.unsqueeze(-1) for x in parts if x is not None]
        before = self._length_before()
        all_keys = self.cache.extend(kept, new, window=window, before=before, empty=-1)
        if is_first:
            return self
        positions, *documents = (x.squeeze(-1) for x in all_keys)
        contiguous = self.contiguous and not self.cache.has_gaps
        return TokenPositions(positions, *documents, contiguous=contiguous)

    def _length_before(self) -> Any:
        """Return how many tokens of a row came before; counts those of this pass once."""
        cache = self.cache
        assert cache is not None
        return self.cached("length before", lambda: cache.advance(self.positions))


@runtime_checkable
class ContextFactory(Protocol):
    """Makes the context of a batch of tokens."""

    def __call__(self, tokens: Tokens, /) -> AttentionContext: ...


def one_document(tokens: Tokens) -> AttentionContext:
    """Treat every row as one document: positions count from 0 to its end."""
    return counted(tokens.shape[1], tokens.device, tokens=tokens)


def counted(seq: int, device: torch.device, *, tokens: Tokens | None = None) -> AttentionContext:
    """Return a context of positions from 0 to seq - 1 in every row."""
    positions = torch.arange(seq, device=device).unsqueeze(0)
    return AttentionContext(positions, contiguous=True, tokens=tokens)


@dataclass(frozen=True, kw_only=True)
class PackedDocuments:
    """Rows of several documents, none of which sees another.

    Positions start at 0 in each document (as in the training of Llama 3; Grattafiori et al.,
    2024, arXiv:2407.21783, section 3.2).

    Attributes:
      end_of_text: the token between two documents. It is the first token of the second, as it is
        before a prompt.
    """

    end_of_text: int

    def __call__(self, tokens: Tokens) -> AttentionContext:
        """Return the context of rows in which `end_of_text` separates the documents."""
        begins = tokens == self.end_of_text
        columns = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        first = torch.where(begins, columns, 0).cummax(1).values
        return AttentionContext(columns - first, documents=begins.cumsum(1), tokens=tokens)


def padded(tokens: Tokens, *, present: Tokens) -> AttentionContext:
    """Return the context of rows of different lengths.

    Args:
      tokens: any ids where there is padding.
      present: 1 for tokens and 0 for padding, as the attention masks of transformers.
    """
    present = present.long()
    return AttentionContext(present.cumsum(1) * present - 1, tokens=tokens)
