"""What a kernel computes beside products: scale, mask, changes of scores, sinks, dropout."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from fidgpt.model.layout import Layout, Places
from fidgpt.model.masks import Mask, Token, is_causal_among
from fidgpt.model.scores import ScoreChange


@dataclass(frozen=True, eq=False, kw_only=True)
class Scoring:
    """How much a query listens to a key.

    That is the softmax, over the keys that the mask allows, of the products of query and key times
    `scale`, after `changes`; a sink takes a share and gives nothing.

    Attributes:
      scale: of the products.
      mask: which keys a query may look at.
      queries: where the queries stand.
      keys: where the keys stand; the same object where they are the same tokens.
      layout: of the pass, which remembers masks from layer to layer.
      changes: of the scores, in turn.
      sinks: a score for each head that is no key's.
      dropout: probability of dropping a weight.
    """

    scale: float
    mask: Mask
    queries: Places
    keys: Places
    layout: Layout
    changes: Sequence[ScoreChange] = ()
    sinks: Float[Tensor, " heads"] | None = None
    dropout: float = 0.0

    @property
    def is_softmax(self) -> bool:
        """Whether scores are products times the scale, and nothing else."""
        return len(self.changes) == 0 and self.sinks is None  # `not` does not compile

    @property
    def is_causal(self) -> bool:
        """Whether query i sees the keys up to i and all of them, for sure."""
        same = self.queries is self.keys and self.queries.whole
        return same and is_causal_among(self.mask, len(self.keys))

    @property
    def sees_all(self) -> bool:
        """Whether there is one query and it sees every key, for sure."""
        whole = len(self.queries) == 1 and self.queries.whole and self.keys.whole
        return whole and is_causal_among(self.mask, len(self.keys))

    def visible(self) -> Bool[Tensor, "rows one queries keys"]:
        """Which keys each query may look at; made once for all layers alike."""
        key = ("visible", self.mask, len(self.keys))
        return self.layout.once(key, self._visible)

    def _visible(self) -> Bool[Tensor, "rows one queries keys"]:
        queries, keys = _tokens(self.queries, -1), _tokens(self.keys, -2)
        return self.sees(queries, keys)

    def sees(self, query: Token, key: Token) -> Bool[Tensor, "..."]:
        """The mask, among tokens that exist and are of one document."""
        seen = self.mask(query, key) & (key.position >= 0)
        if query.document is None or key.document is None:
            return seen
        return seen & (query.document == key.document)

    def changed(
        self, scores: Float[Tensor, "batch heads queries keys"], heads: Tensor
    ) -> Float[Tensor, "batch heads queries keys"]:
        """All scores after the changes; `heads` are numbers that broadcast with them."""
        queries, keys = _tokens(self.queries, -1), _tokens(self.keys, -2)
        for change in self.changes:
            scores = change(scores, head=heads, num_heads=scores.shape[1], query=queries, key=keys)
        return scores


@runtime_checkable
class Kernel(Protocol):
    """Computes attention."""

    def __call__(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch kv_heads keys head_dim"],
        value: Float[Tensor, "batch kv_heads keys value_dim"],
        scoring: Scoring,
        /,
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """The values, weighed for each query; neighbouring query heads share a key head."""
        ...


def _tokens(places: Places, other: int) -> Token:
    """Every token with a dimension for those on the other side, and one for heads."""
    rows = places.positions.unsqueeze(1).unsqueeze(other)
    if places.documents is None:
        return Token(rows)
    return Token(rows, places.documents.unsqueeze(1).unsqueeze(other))
