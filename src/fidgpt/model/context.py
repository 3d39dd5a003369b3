"""The context of a forward pass: positions, documents, masks and the KV cache."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fidgpt.model.cache import Cache, state_key
from fidgpt.model.masks import Mask, Token, Window, causal

__all__ = [
    "AttentionContext",
    "ContextFactory",
    "EndedDocuments",
    "PackedDocuments",
    "TokenMasks",
    "one_document",
    "packed_documents",
    "padded",
]


T = TypeVar("T")
Tokens = Int[Tensor, "batch seq"]
Stream = Float[Tensor, "batch seq hidden"]


@dataclass(frozen=True, eq=False)
class TokenPositions:
    """Positions of tokens: the tokens of a pass, or all keys in a cache.

    Attributes:
      positions: position of each token in its document, from 0, in one row per batch row or a
        single row for all; negative for padding.
      documents: number of each token's document; None if every row is one document.
      contiguous: whether every row is statically known to be one document without padding.
    """

    positions: Int[Tensor, "rows seq"]
    documents: Int[Tensor, "rows seq"] | None = None
    contiguous: bool = False

    def __len__(self) -> int:
        return self.positions.shape[1]

    def along(self, dim: int) -> Token:
        """Return all tokens, broadcastable to [rows, 1, queries, keys], along `dim`, -2 or -1."""
        other = -1 if dim == -2 else -2
        position = self.positions.unsqueeze(1).unsqueeze(other)
        if self.documents is None:
            return Token(position)
        return Token(position, self.documents.unsqueeze(1).unsqueeze(other))

    def part(self, rows: slice, columns: slice | Tensor) -> "TokenPositions":
        """Return some columns of some rows; a single row of positions applies to all rows."""

        def chosen(x: Tensor) -> Tensor:
            return (x if len(x) == 1 else x[rows])[:, columns]

        documents = self.documents
        return TokenPositions(
            chosen(self.positions), None if documents is None else chosen(documents)
        )

    def at(self, row: Tensor, column: Tensor) -> Token:
        """Return the token at an index; a single row of positions applies to all rows."""
        row = row if len(self.positions) > 1 else torch.zeros_like(row)
        documents = self.documents
        return Token(
            self.positions[row, column], None if documents is None else documents[row, column]
        )


@runtime_checkable
class TokenMasks(Protocol):
    """Which tokens of a pass are padding, and which count; see `AttentionContext`.

    This is what a module may ask of the context that computes on each token alone.
    """

    @property
    def counted(self) -> Bool[Tensor, "batch seq"] | None: ...

    @property
    def real(self) -> Bool[Tensor, "batch seq"] | None: ...

    @property
    def real_of_rows(self) -> Bool[Tensor, "batch columns"] | None: ...

    @property
    def num_columns(self) -> int: ...


@dataclass(frozen=True, eq=False)
class AttentionContext(TokenPositions):
    """The input of every layer besides the residual stream: positions, documents and the cache.

    Attributes:
      tokens: token ids [batch, seq], for modules that embed them again; None if not available.
      cache: keys and values of earlier tokens, during generation.
      layer: index of the layer whose cache `update_cache` extends.
      continues: whether the tokens continue a text one by one, so that none attends to later ones,
        whatever the mask.
      counted: whether the target of each token, the one after it, counts in the loss [batch, seq];
        None if all do.
      real: whether each token is no padding [batch, seq]; None if all are.
    """

    PASSED_ALWAYS: ClassVar[bool] = True

    tokens: Tokens | None = None
    cache: Cache | None = None
    layer: int = 0
    continues: bool = False
    counted: Bool[Tensor, "batch seq"] | None = None
    real: Bool[Tensor, "batch seq"] | None = None
    _cached: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def at_layer(self, index: int) -> "AttentionContext":
        """Return the context for layer `index`; without a cache, the context itself."""
        if self.cache is None:
            return self
        self.cache.layer(index)
        return replace(self, layer=index)

    @property
    def num_columns(self) -> int:
        """Number of tokens of a whole row, some of which other processes may compute."""
        return len(self)

    def columns(self, begin: int, end: int, *, ahead: int = 0, also: int = 0) -> "AttentionContext":
        """Return the context of columns `begin` to `end`, without a cache.

        Args:
          begin: first column of the whole row.
          end: the column after the last one.
          ahead: return the tokens that come so many columns after these instead.
          also: so many columns after each token is another one that has to be no padding either.
        """
        begin, end = begin + ahead, end + ahead
        parts = self.each_token(lambda x: x[:, begin:end])
        if also and self.real is not None:
            parts["real"] = parts["real"] & self.real[:, begin + also : end + also]
        return AttentionContext(contiguous=self.contiguous, **parts)

    def each_token(self, choose: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return what `choose` makes of each attribute that has a number for each token."""
        parts = {
            "positions": self.positions,
            "documents": self.documents,
            "tokens": self.tokens,
            "counted": self.counted,
            "real": self.real,
        }
        return {name: choose(x) for name, x in parts.items() if x is not None}

    @property
    def real_of_rows(self) -> Bool[Tensor, "batch columns"] | None:
        """Whether each token of whole rows is no padding; None if all are."""
        return self.real

    def own(self, x: Tensor) -> Tensor:
        """Return the columns of a tensor [batch, seq, ...] of whole rows that this process has."""
        return x

    @property
    def spans(self) -> Sequence[tuple[int, int]]:
        """The ranges of a whole row that these tokens are, from the first to after the last."""
        return ((0, len(self)),)

    def in_order(self, x: Tensor) -> Tensor:
        """Return what `update_cache` returned, [..., keys, size], in the order of a whole row."""
        return x

    @property
    def rows(self) -> "AttentionContext":
        """The context of the tokens that `whole_rows` returns."""
        return self

    def whole_rows(self, new: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return a recurrent layer's tensors [batch, seq, size] of all tokens of a row, in order.

        Other processes may compute some of them. `own` returns the results of these tokens.

        Args:
          new: tensors of these tokens.
        """
        return new

    def update_cache(
        self, owner: object, new: Sequence[Tensor], *, window: int | None = None
    ) -> Sequence[Tensor]:
        """Append a layer's tensors of these tokens to its cache; return the tensors of all keys.

        Args:
          owner: the module whose tensors these are; `self` of the caller.
          new: tensors [..., seq, size], such as keys and values.
          window: sliding-window size of the caller in tokens; None for full attention.

        Returns:
          The tensors [..., keys, size] of all keys that these tokens may attend to; `new` without a
          cache. `visible` and `distance` use the same keys for the same window.
        """
        if self.cache is None:
            return new
        self.key_positions(window)  # adds their positions to the cache
        kept = self.cache.layer(self.layer).setdefault(owner, [])
        return self.cache.extend(kept, new, window=window, before=self._length_before())

    def state(self, owner: object) -> Sequence[Tensor]:
        """Return what a recurrent layer passed to `keep_state` after the tokens before these.

        Empty at the beginning of a text and without a cache: the state is then the initial one.

        Args:
          owner: the module whose state it is; `self` of the caller.
        """
        if self.cache is None:
            return []
        return [state.clone() for state in self.cache.layer(self.layer).get(state_key(owner), [])]

    def keep_state(self, owner: object, state: Sequence[Tensor]) -> None:
        """Keep the state of a recurrent layer after these tokens, for the pass that follows.

        A state has a fixed size, unlike the keys and values of `update_cache`: one layer may use
        both. Where a document begins (`positions` is 0), or at padding (`positions` is negative),
        the layer has to start from the initial state itself. No-op without a cache.

        Args:
          owner: the module whose state it is; `self` of the caller.
          state: tensors of the same shapes in every pass, such as [batch, size].
        """
        if self.cache is not None:
            kept = self.cache.layer(self.layer).setdefault(state_key(owner), [])
            self.cache.keep(kept, state)

    def visible(
        self, mask: Mask = causal, *, window: int | None = None
    ) -> Bool[Tensor, "rows one queries keys"]:
        """Return the boolean mask of keys that each query may attend to.

        True for tokens of the query's document that are not padding, are within the window and are
        allowed by `mask`. The keys are those that `update_cache` returns for the same window. The
        tensor is computed once and shared by all layers.

        Args:
          mask: a mask such as `causal` or a `Prefix`.
          window: sliding-window size in tokens, including the query; None for full attention.
        """

        def compute() -> Tensor:
            return self.may_see(self.along(-2), self.key_positions(window).along(-1), mask, window)

        return self.cached(("visible", mask, window), compute)

    def distance(self, *, window: int | None = None) -> Int[Tensor, "rows one queries keys"]:
        """Return the position of each query minus that of each key, in tokens."""
        return self.along(-2).position - self.key_positions(window).along(-1).position

    def key_positions(self, window: int | None = None) -> TokenPositions:
        """Return the positions of all keys; without a cache, the context itself.

        Args:
          window: sliding-window size of the layer in tokens; None for full attention.
        """
        if self.cache is None:
            return self
        return self.cached(("keys", self.cache.slots(window)), lambda: self._cached_keys(window))

    def cached(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of `compute`, which runs once per pass, so that layers share it."""
        if key not in self._cached:
            self._cached[key] = compute()
        return self._cached[key]

    def shared_bytes(self) -> int:
        """Return the size of the results of `cached`, in bytes."""
        return sum(tensor.nbytes for tensor in _tensors_in([*self._cached.values()]))

    def may_see(
        self, query: Token, key: Token, mask: Mask, window: int | None
    ) -> Bool[Tensor, "..."]:
        """Return whether queries may attend to keys; the shapes of tokens broadcast."""
        visible = mask(query, key) & (key.position >= 0)
        if self.continues and mask is not causal:
            visible = visible & causal(query, key)
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
        all_keys = self.cache.extend(kept, new, window=window, before=before)
        if is_first:
            return self
        positions, *documents = (x.squeeze(-1) for x in all_keys)
        return TokenPositions(positions, *documents, contiguous=self.contiguous)

    def _length_before(self) -> int:
        """Return the number of earlier tokens per row; counts the tokens of this pass once."""
        cache = self.cache
        assert cache is not None
        return self.cached("length before", lambda: cache.advance(self.positions))


@runtime_checkable
class ContextFactory(Protocol):
    """Makes the context of a batch of tokens."""

    def __call__(self, tokens: Tokens, /) -> AttentionContext: ...


@runtime_checkable
class Division(Protocol):
    """Splits the tokens of sequences over processes."""

    def __call__(self, ctx: AttentionContext, tokens: Tokens, /) -> AttentionContext:
        """Return the context of this process's part of whole rows of tokens."""
        ...

    def own(self, x: Tensor, /) -> Tensor:
        """Return the columns of a tensor [batch, seq] of whole rows that this process computes."""
        ...


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in cast(Sequence[Any], value):
            yield from _tensors_in(each)
    else:
        yield from _tensors_in([*getattr(value, "__dict__", {}).values()])


def one_document(tokens: Tokens) -> AttentionContext:
    """Return a context in which every row is one document."""
    return counted(tokens.shape[1], tokens.device, tokens=tokens)


def counted(seq: int, device: torch.device, *, tokens: Tokens | None = None) -> AttentionContext:
    """Return a context with positions 0 to seq - 1 in every row."""
    positions = torch.arange(seq, device=device).unsqueeze(0)
    return AttentionContext(positions, contiguous=True, tokens=tokens)


@dataclass(frozen=True, kw_only=True)
class PackedDocuments:
    """Returns contexts for rows of several documents, with no attention across documents.

    Positions start at 0 in each document (as in the training of Llama 3; Grattafiori et al.,
    2024, arXiv:2407.21783, section 3.2).

    Attributes:
      end_of_text: id of the token between two documents. It belongs to the second one, as its first
        token, as it does in front of a prompt.
    """

    end_of_text: int

    def __call__(self, tokens: Tokens) -> AttentionContext:
        """Return the context of rows in which `end_of_text` separates documents."""
        begins = self._begins(tokens)
        columns = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        first = torch.where(begins, columns, 0).cummax(1).values
        return AttentionContext(columns - first, documents=begins.cumsum(1), tokens=tokens)

    def _begins(self, tokens: Tokens) -> Bool[Tensor, "batch seq"]:
        return tokens == self.end_of_text


@dataclass(frozen=True, kw_only=True)
class EndedDocuments(PackedDocuments):
    """The same for documents whose last token, not their first, is `end_of_text`.

    Tokenizers make such documents that put another token in front of a text, as Llama 3's does, or
    none, as Qwen's does.
    """

    def _begins(self, tokens: Tokens) -> Bool[Tensor, "batch seq"]:
        return F.pad(tokens[:, :-1] == self.end_of_text, (1, 0))


def packed_documents(*, end_of_text: int, begin_of_text: int | None) -> PackedDocuments:
    """Return what makes contexts for rows of documents, with no attention across them.

    Args:
      end_of_text: id of the token behind every document.
      begin_of_text: id of the token in front of it: the same one, another, or None for nothing.
    """
    kind = PackedDocuments if begin_of_text == end_of_text else EndedDocuments
    return kind(end_of_text=end_of_text)


def padded(tokens: Tokens, *, present: Tokens) -> AttentionContext:
    """Return the context of padded rows.

    Args:
      tokens: token ids; the ids of padding are arbitrary.
      present: 1 for tokens and 0 for padding, as in the attention masks of transformers.
    """
    present = present.long()
    positions = present.cumsum(1) * present - 1
    return AttentionContext(positions, tokens=tokens, real=present.bool())
