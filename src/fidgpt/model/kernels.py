"""Attention kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

from fidgpt.model.context import (
    AttentionContext,
    Mask,
    ScoreChange,
    Token,
    TokenPositions,
    is_causal_among,
)

Queries = Float[Tensor, "heads group seq head_dim"]
Keys = Float[Tensor, "heads seq head_dim"]
Values = Float[Tensor, "heads seq value_dim"]
Mixed = Float[Tensor, "heads group seq value_dim"]


def mix(
    queries: Queries, keys: Keys, values: Values, *, scale: float, block_size: int, keeps: bool
) -> tuple[Mixed, list[Tensor]]:
    """The weighted values; and the weights of every block, if it `keeps` them."""
    group, seq = queries.shape[1:3]
    mixed, kept = queries.new_empty(*queries.shape[:-1], values.shape[-1]), []
    blocks = _blocks(seq, block_size)
    # Without memory there is nothing to compute, and what the last block takes is the most.
    for rows in blocks[-1:] if queries.is_meta and not keeps else blocks:
        weights = _weights(queries[:, :, rows], keys[:, : rows.stop], scale)
        mixed[:, :, rows] = _ungroup(weights @ values[:, : rows.stop], group)
        if keeps:
            kept.append(weights)
    return mixed, kept


def gradients(
    gradient: Mixed,
    queries: Queries,
    keys: Keys,
    values: Values,
    mixed: Mixed,
    kept: Sequence[Tensor],
    *,
    scale: float,
    block_size: int,
) -> tuple[Queries, Keys, Values]:
    """Those of queries, keys and values; weights that `mix` did not keep are computed anew."""
    group, seq = queries.shape[1:3]
    # What the softmax takes off every score's gradient (Dao et al., 2022, equation 4).
    offsets = (gradient * mixed).sum(-1, keepdim=True)
    query_gradient = queries.new_empty(queries.shape)
    key_gradient, value_gradient = _Sum(), _Sum()
    # The last block sees every key, so that its gradients have room for those of the others.
    for number, rows in reversed(list(enumerate(_blocks(seq, block_size)))):
        seen = slice(rows.stop)
        asked, above = (x[:, :, rows].flatten(1, 2) for x in (queries, gradient))
        weights = kept[number] if kept else _weights(queries[:, :, rows], keys[:, seen], scale)
        value_gradient.add(weights.mT @ above)
        scores = torch.baddbmm(
            offsets[:, :, rows].flatten(1, 2),
            above,
            values[:, seen].mT,
            beta=-scale,
            alpha=scale,
        ).mul_(weights)
        key_gradient.add(scores.mT @ asked)
        query_gradient[:, :, rows] = _ungroup(scores @ keys[:, seen], group)
    return (
        query_gradient,
        key_gradient.total.to(keys.dtype),
        value_gradient.total.to(values.dtype),
    )


class _Sum:
    """The gradient of keys that many blocks add to: in float32, so that nothing is lost."""

    total: Tensor

    def add(self, part: Float[Tensor, "heads seen head_dim"]) -> None:
        """Adds to the first `seen` keys; the first part has all keys."""
        if hasattr(self, "total"):
            wide = torch.promote_types(part.dtype, torch.float32)
            self.total = self.total.to(wide)
            self.total[:, : part.shape[1]] += part
        else:
            self.total = part


def _blocks(seq: int, block_size: int) -> list[slice]:
    return [slice(i, min(i + block_size, seq)) for i in range(0, seq, block_size)]


def _weights(
    queries: Float[Tensor, "heads group block head_dim"],
    keys: Float[Tensor, "heads seen head_dim"],
    scale: float,
) -> Float[Tensor, "heads group_block seen"]:
    """Softmax of the scores of the last `block` positions among those seen."""
    group, block = queries.shape[1:3]
    seen = keys.shape[1]
    future = keys.new_full((block, seen), float("-inf")).triu_(seen - block + 1)
    return torch.baddbmm(
        future.repeat(group, 1), queries.flatten(1, 2), keys.mT, alpha=scale
    ).softmax(-1)


def _ungroup(
    rows: Float[Tensor, "heads group_block head_dim"], group: int
) -> Float[Tensor, "heads group block head_dim"]:
    return rows.unflatten(1, (group, -1))


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
    queries: TokenPositions
    keys: TokenPositions
    layout: AttentionContext
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


def _tokens(places: TokenPositions, other: int) -> Token:
    """Every token with a dimension for those on the other side, and one for heads."""
    rows = places.positions.unsqueeze(1).unsqueeze(other)
    if places.documents is None:
        return Token(rows)
    return Token(rows, places.documents.unsqueeze(1).unsqueeze(other))


def dense(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    scoring: Scoring,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Computes anything that a `Scoring` says, with memory for every score of a layer.

    A query that may look at nothing, where no token is, gets no sensible value and no NaN.
    """
    heads, kv_heads = query.shape[1], key.shape[1]
    grouped = (query * scoring.scale).unflatten(1, (kv_heads, heads // kv_heads))
    scores = (grouped @ key.unsqueeze(2).mT).flatten(1, 2)
    numbers = torch.arange(heads, device=query.device).view(-1, 1, 1)
    scores = scoring.changed(scores, numbers)
    if not scoring.sees_all:
        scores = scores.masked_fill(~scoring.visible(), torch.finfo(scores.dtype).min)
    weights = _softmax(scores, scoring.sinks).to(value.dtype)
    weights = F.dropout(weights, scoring.dropout)
    mixed = weights.unflatten(1, (kv_heads, heads // kv_heads)) @ value.unsqueeze(2)
    return mixed.flatten(1, 2)


def _softmax(
    scores: Float[Tensor, "batch heads queries keys"], sinks: Float[Tensor, " heads"] | None
) -> Float[Tensor, "batch heads queries keys"]:
    """In float32 at least; a sink has its share, which falls away."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    if sinks is None:
        return scores.softmax(-1, dtype=wide)
    column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1, dtype=wide)[..., :-1]


def sdpa(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    scoring: Scoring,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """What is a softmax of scaled products under a mask; the rest is left to `dense`."""
    if not scoring.is_softmax:
        return dense(query, key, value, scoring)
    causal = scoring.is_causal
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if causal or scoring.sees_all else scoring.visible(),
        is_causal=causal,
        dropout_p=scoring.dropout,
        scale=scoring.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


# Kept weights of a layer take seq^2 * heads bytes a row or a little more.
_KEEP_UP_TO = 512


def blockwise(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    scoring: Scoring,
    *,
    block_size: int = 128,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Causal attention as matrix products of a block of queries with the keys up to its end.

    Keys after a block are never touched, which saves up to half of the work. The weights of long
    sequences exist for one block at a time, and the backward pass computes them anew, as in
    FlashAttention (Dao et al., 2022, arXiv:2205.14135, section 3.1); those of
    short ones are kept, which saves a seventh of the time. What is not plainly causal is left to
    `sdpa`.
    """
    if not (scoring.is_softmax and scoring.is_causal) or scoring.dropout:
        return sdpa(query, key, value, scoring)
    batch, kv_heads, seq = key.shape[:3]
    queries = query.reshape(batch * kv_heads, -1, seq, query.shape[-1])
    keys, values = (x.reshape(batch * kv_heads, seq, -1) for x in (key, value))
    keeps = seq <= _KEEP_UP_TO
    if torch.compiler.is_compiling() and not keeps:
        mixed = _forgetful(queries, keys, values, scoring.scale, block_size)
    else:
        mixed = _Blockwise.apply(queries, keys, values, scoring.scale, block_size, keeps)
    return mixed.view(*query.shape[:-1], -1)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: float,
        block_size: int,
        keeps: bool,
    ) -> Tensor:
        mixed, kept = mix(queries, keys, values, scale=scale, block_size=block_size, keeps=keeps)
        ctx.save_for_backward(queries, keys, values, mixed, *kept)
        ctx.scale, ctx.block_size = scale, block_size
        return mixed

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor | None, ...]:
        queries, keys, values, mixed, *kept = ctx.saved_tensors
        found = gradients(
            outer[0], queries, keys, values, mixed, kept, scale=ctx.scale, block_size=ctx.block_size
        )
        return *found, None, None, None


# Torch compiles the blocks of short sequences into what stands around them. Those of long ones it
# would compile one by one, and keep the weights that are to be forgotten: they are one operator.


@torch.library.custom_op("fidgpt::blockwise_attention", mutates_args=())
def _forgetful(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, block_size: int
) -> Tensor:
    return mix(queries, keys, values, scale=scale, block_size=block_size, keeps=False)[0]


@_forgetful.register_fake
def _(queries: Tensor, keys: Tensor, values: Tensor, scale: float, block_size: int) -> Tensor:
    return queries.new_empty(*queries.shape[:-1], values.shape[-1])


@torch.library.custom_op("fidgpt::blockwise_attention_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mixed: Tensor,
    scale: float,
    block_size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    saved = (queries, keys, values, mixed)
    return gradients(gradient, *saved, [], scale=scale, block_size=block_size)


@_backward.register_fake
def _(
    gradient: Tensor, queries: Tensor, keys: Tensor, values: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (queries, keys, values))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.scale, ctx.block_size = inputs
    ctx.save_for_backward(*tensors, output)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(gradient, *ctx.saved_tensors, ctx.scale, ctx.block_size), None, None


_forgetful.register_autograd(_gradients, setup_context=_remember)


def flex(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    scoring: Scoring,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Everything but dropout, gradients on a CPU and tensors without memory: `sdpa` does those.

    (Dong et al., 2024, arXiv:2412.05496.)
    """
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if scoring.dropout or query.is_meta or (learning and query.device.type == "cpu"):
        return sdpa(query, key, value, scoring)
    mixed, extra = _compiled(query.device.type)(
        query,
        key,
        value,
        score_mod=partial(_changed, scoring, query.shape[1]) if scoring.changes else None,
        block_mask=_block_mask(scoring, query.device),
        scale=scoring.scale,
        enable_gqa=query.shape[1] != key.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    if scoring.sinks is None:
        return mixed
    assert extra.lse is not None  # asked for above
    # A sink s beside scores of log-sum-exp l leaves them e^l / (e^l + e^s) of the weight.
    share = torch.sigmoid(extra.lse - scoring.sinks.float().view(-1, 1))
    return mixed * share.unsqueeze(-1).to(mixed.dtype)


@cache
def _compiled(device: str) -> Callable[..., tuple[Tensor, AuxOutput]]:
    """Only the compiled form is fused; a CPU needs no compiler for the other one."""
    return flex_attention if device == "cpu" else torch.compile(flex_attention)


def _block_mask(scoring: Scoring, device: torch.device) -> BlockMask:
    """Which blocks of scores are needed at all; made once for all layers alike."""
    queries, keys = scoring.queries, scoring.keys
    rows = max(len(queries.positions), len(keys.positions))
    sizes = (rows if rows > 1 else None, None, len(queries), len(keys))
    return scoring.layout.once(
        ("blocks", scoring.mask, len(keys)),
        lambda: create_block_mask(partial(_sees, scoring), *sizes, device=device),
    )


def _sees(scoring: Scoring, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Whether a query may look at a key, each given by its column."""
    return scoring.sees(_at(scoring.queries, batch, query), _at(scoring.keys, batch, key))


def _changed(
    scoring: Scoring,
    num_heads: int,
    score: Tensor,
    batch: Tensor,
    head: Tensor,
    query: Tensor,
    key: Tensor,
) -> Tensor:
    """One score after all changes."""
    ours, theirs = _at(scoring.queries, batch, query), _at(scoring.keys, batch, key)
    for change in scoring.changes:
        score = change(score, head=head, num_heads=num_heads, query=ours, key=theirs)
    return score


def _at(places: TokenPositions, row: Tensor, column: Tensor) -> Token:
    """One token; a single row of positions stands for all."""
    row = row if len(places.positions) > 1 else torch.zeros_like(row)
    position = places.positions[row, column]
    return Token(position, None if places.documents is None else places.documents[row, column])


def fastest(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    scoring: Scoring,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Torch's own kernel for plain attention, except where it is not the fastest.

    In bfloat16 on a CPU its backward pass takes 1.7 to 4 times as long as plain matrix products.
    On a GPU, what is not plain goes to FlexAttention, which skips what the mask hides.
    """
    return fastest_on(query.device.type, query.dtype, scoring)(query, key, value, scoring)


def fastest_on(device_type: str, dtype: torch.dtype, scoring: Scoring) -> Kernel:
    """The form that `fastest` takes on a kind of device, such as `cuda`."""
    plain = scoring.is_softmax and (scoring.is_causal or scoring.sees_all)
    if device_type == "cuda" and not plain:
        return flex
    if device_type == "cpu" and dtype == torch.bfloat16:
        return blockwise
    return sdpa
