"""Attention kernels: weighted values from queries, keys and values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

from fidgpt.model import cpu
from fidgpt.model.context import AttentionContext
from fidgpt.model.cpu.attention import KEEP_UP_TO, Tile, blockwise_attention, tiles_of
from fidgpt.model.masks import ALiBi, Mask, ScoreChange, Softcap, causal, is_causal_among

__all__ = ["Kernel", "Scoring", "blockwise", "eager", "fastest", "flex", "sdpa"]


Queries = Float[Tensor, "batch heads queries head_dim"]
Keys = Float[Tensor, "batch kv_heads keys head_dim"]
Values = Float[Tensor, "batch kv_heads keys value_dim"]
Mixed = Float[Tensor, "batch heads queries value_dim"]
Scores = Float[Tensor, "batch heads queries keys"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Scoring:
    """How attention weights are computed.

    The weights are a softmax over the keys that a query may attend to, of `scale` times the product
    of query and key, after `changes`. Sinks take part in the softmax, but have no value.

    Attributes:
      ctx: context of the pass.
      scale: factor of the query-key products.
      mask: which keys a query may attend to.
      window: sliding-window size in tokens, including the query; None for full attention.
      changes: modifications of the scores, in order.
      sinks: the sink score of each head; None for none.
      dropout: probability of dropping a weight.
      split_place: which part of the heads this process computes, of how many.
      selected: the keys that a query attends to, in kernels without blocks; None for `mask`'s.
    """

    ctx: AttentionContext
    scale: float
    mask: Mask = causal
    window: int | None = None
    changes: Sequence[ScoreChange] = ()
    sinks: Float[Tensor, " heads"] | None = None
    dropout: float = 0.0
    split_place: tuple[int, int] = (0, 1)
    selected: Bool[Tensor, "rows one queries keys"] | None = None

    @property
    def is_softmax(self) -> bool:
        """Whether scores are scaled products, without changes or sinks."""
        return len(self.changes) == 0 and self.sinks is None  # torch.compile fails on `not`

    @property
    def is_causal(self) -> bool:
        """Whether each query is statically known to see exactly the keys up to itself."""
        if self.selected is not None:
            return False
        keys = self.ctx.key_positions(self.window)
        same = keys.positions is self.ctx.positions and self.ctx.contiguous
        return same and is_causal_among(self.mask, self.window, num_keys=len(keys))

    @property
    def is_causal_by_spans(self) -> bool:
        """Whether `is_causal` holds for whole rows, whose parts `ctx.spans` are the queries."""
        ctx = self.ctx
        is_whole = ctx.contiguous and ctx.cache is None
        return is_whole and is_causal_among(self.mask, self.window, num_keys=ctx.num_columns)

    @property
    def sees_all(self) -> bool:
        """Whether there is a single query that is statically known to see every key."""
        if self.selected is not None:
            return False
        keys = self.ctx.key_positions(self.window)
        is_single = len(self.ctx) == 1 and self.ctx.contiguous and keys.contiguous
        return is_single and is_causal_among(self.mask, self.window, num_keys=len(keys))

    def visible(self) -> Bool[Tensor, "rows one queries keys"]:
        """Return the boolean mask of keys that each query may attend to."""
        if self.selected is not None:
            return self.selected
        return self.ctx.visible(self.mask, window=self.window)


@runtime_checkable
class Kernel(Protocol):
    """Computes attention."""

    def __call__(self, query: Queries, key: Keys, value: Values, scoring: Scoring, /) -> Mixed:
        """Return the weighted values of each query; consecutive query heads share a key head."""
        ...


def eager(query: Queries, key: Keys, value: Values, scoring: Scoring) -> Mixed:
    """Compute any `Scoring` step by step, materializing all scores of a layer.

    A query without visible keys, which is padding, gets an arbitrary value, but not NaN.
    """
    heads, kv_heads = query.shape[1], key.shape[1]
    weights = _weights(query, key, scoring).to(value.dtype)
    weights = F.dropout(weights, scoring.dropout)
    mixed = weights.unflatten(1, (kv_heads, heads // kv_heads)) @ value.unsqueeze(2)
    return mixed.flatten(1, 2)


@torch.no_grad()
def weights_of_heads(
    query: Queries, key: Keys, scoring: Scoring
) -> Float[Tensor, "batch one queries keys"]:
    """Return the weights, summed over the heads, which take turns to save memory."""
    heads, group = query.shape[1], query.shape[1] // key.shape[1]
    place, parts = scoring.split_place
    total = query.new_zeros((), dtype=torch.float32)
    for i in range(heads):
        sinks = None if scoring.sinks is None else scoring.sinks[i : i + 1]
        own = replace(scoring, split_place=(place * heads + i, parts * heads), sinks=sinks)
        total = total + _weights(query[:, i : i + 1], key[:, i // group : i // group + 1], own)
    return total


def _weights(query: Queries, key: Keys, scoring: Scoring) -> Scores:
    """Return the weights of any `Scoring`, in float32 or wider, before dropout."""
    heads, kv_heads = query.shape[1], key.shape[1]
    grouped = (query * scoring.scale).unflatten(1, (kv_heads, heads // kv_heads))
    scores = (grouped @ key.unsqueeze(2).mT).flatten(1, 2)
    if scoring.changes:
        place, parts = scoring.split_place
        numbers = torch.arange(heads, device=query.device).view(-1, 1, 1) + place * heads
        query_at = scoring.ctx.along(-2)
        key_at = scoring.ctx.key_positions(scoring.window).along(-1)
        for change in scoring.changes:
            scores = change(
                scores, head=numbers, num_heads=heads * parts, query=query_at, key=key_at
            )
    if not scoring.sees_all:
        scores = scores.masked_fill(~scoring.visible(), torch.finfo(scores.dtype).min)
    return _softmax(scores, scoring.sinks)


def _softmax(scores: Scores, sinks: Float[Tensor, " heads"] | None) -> Scores:
    """Return the softmax, in float32 or wider, without the column of the sinks."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    if sinks is None:
        return scores.softmax(-1, dtype=wide)
    column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1, dtype=wide)[..., :-1]


def sdpa(query: Queries, key: Keys, value: Values, scoring: Scoring) -> Mixed:
    """Call torch's scaled_dot_product_attention, or `eager` if scores are changed or have sinks."""
    if not scoring.is_softmax:
        return eager(query, key, value, scoring)
    is_causal = scoring.is_causal
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None if is_causal or scoring.sees_all else scoring.visible(),
        is_causal=is_causal,
        dropout_p=scoring.dropout,
        scale=scoring.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def flex(query: Queries, key: Keys, value: Values, scoring: Scoring) -> Mixed:
    """Call FlexAttention (Dong et al., 2024, arXiv:2412.05496), which skips masked blocks.

    Falls back to `sdpa` for dropout, gradients on a CPU, and meta tensors.
    """
    training = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if scoring.dropout or query.is_meta or (training and query.device.type == "cpu"):
        return sdpa(query, key, value, scoring)
    mixed, extra = _compiled(query.device.type)(
        query,
        key,
        value,
        score_mod=_score_mod(scoring, query.shape[1]),
        block_mask=_block_mask(scoring, query.device),
        scale=scoring.scale,
        enable_gqa=query.shape[1] != key.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    if scoring.sinks is None:
        return mixed
    assert extra.lse is not None  # requested above
    # With a sink s, scores of log-sum-exp l get the fraction e^l / (e^l + e^s) of the weight.
    share = torch.sigmoid(extra.lse - scoring.sinks.float().view(-1, 1))
    return mixed * share.unsqueeze(-1).to(mixed.dtype)


@cache
def _compiled(device: str) -> Callable[..., tuple[Tensor, AuxOutput]]:
    """Return flex_attention, compiled on GPUs: only the compiled form is fused."""
    return flex_attention if device == "cpu" else torch.compile(flex_attention)


def _block_mask(scoring: Scoring, device: torch.device) -> BlockMask:
    """Return the mask of score blocks to compute, shared by all layers."""
    queries, keys = scoring.ctx, scoring.ctx.key_positions(scoring.window)
    rows = max(len(queries.positions), len(keys.positions))
    sizes = (rows if rows > 1 else None, None, len(queries), len(keys))

    def may_see(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        pair = queries.at(batch, query), keys.at(batch, key)
        return queries.may_see(*pair, scoring.mask, scoring.window)

    return scoring.ctx.cached(
        ("blocks", scoring.mask, scoring.window),
        lambda: create_block_mask(may_see, *sizes, device=device),
    )


def _score_mod(scoring: Scoring, num_heads: int) -> Callable[..., Tensor] | None:
    """Return all score changes as one FlexAttention score_mod; None if there are none."""
    queries, keys = scoring.ctx, scoring.ctx.key_positions(scoring.window)
    place, parts = scoring.split_place
    first, all_heads = place * num_heads, parts * num_heads

    def change(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_at, key_at = queries.at(batch, query), keys.at(batch, key)
        for modify in scoring.changes:
            score = modify(
                score, head=head + first, num_heads=all_heads, query=query_at, key=key_at
            )
        return score

    return change if scoring.changes else None


def blockwise(
    query: Queries, key: Keys, value: Values, scoring: Scoring, *, block_size: int = 256
) -> Mixed:
    """Compute attention by blocks of queries, for training on CPUs; fall back to `sdpa` otherwise.

    Each block is multiplied with the keys alone that at least one of its queries may see: those up
    to its end, in its window, of its documents. That saves up to half of the work of plain causal
    attention, and more of others. Softcaps, sums such as ALiBi's, and sinks are computed inside.
    For long sequences, the weights are materialized one block at a time and recomputed in the
    backward pass, as in FlashAttention (Dao et al., 2022, arXiv:2205.14135, section 3.1); for short
    ones they are kept, which saves a seventh of the time. Under context parallelism, where queries
    are parts of a row, no weights are kept.

    Falls back for dropout, other changes of scores, and with a cache or without numbers unless
    attention is plain causal.
    """
    ctx = scoring.ctx
    sizes = {"scale": scoring.scale, "block_size": block_size}
    if scoring.is_softmax and not scoring.dropout:
        if scoring.is_causal:
            return blockwise_attention(query, key, value, **sizes)
        if scoring.is_causal_by_spans:
            spans = ctx.spans
            parts = query.split([end - begin for begin, end in spans], dim=2)
            key, value = (ctx.in_order(x) for x in (key, value))
            mixed = [
                blockwise_attention(part, key[:, :, :end], value[:, :, :end], **sizes, keeps=False)
                for part, (_, end) in zip(parts, spans, strict=True)
            ]
            return torch.cat(mixed, dim=2)
    caps = [change.cap for change in scoring.changes[:1] if isinstance(change, Softcap)]
    shifts = [c.shift for c in scoring.changes[len(caps) :] if isinstance(c, ALiBi)]
    is_known = len(caps) + len(shifts) == len(scoring.changes)
    # The operator that compiled graphs call for other masks knows no changes of scores.
    is_traced = torch.compiler.is_compiling() and not scoring.is_causal and not scoring.is_softmax
    if scoring.dropout or not is_known or is_traced or query.is_meta or ctx.cache is not None:
        return sdpa(query, key, value, scoring)
    visible = tiles = None
    if not scoring.is_causal:
        visible = scoring.visible()
        if not torch.compiler.is_compiling():
            how = (scoring.mask, scoring.window, block_size, query.dtype)
            blocks = partial(tiles_of, visible, ctx.documents, block_size=block_size)
            tiles = ctx.cached(("tiles", *how), partial(blocks, dtype=query.dtype))
    return blockwise_attention(
        query,
        key,
        value,
        **sizes,
        visible=visible,
        documents=ctx.documents,
        tiles=tiles,
        sinks=scoring.sinks,
        cap=caps[0] if caps else None,
        shift=_shift_of(shifts, query, scoring) if shifts else None,
    )


def _shift_of(
    shifts: Sequence[Callable[..., Tensor]], query: Queries, scoring: Scoring
) -> Callable[[Tile], Tensor]:
    """Return a function that sums the shifts of a tile; layers share the sum of short sequences."""
    heads, (place, parts) = query.shape[1], scoring.split_place
    numbers = torch.arange(heads, device=query.device).view(-1, 1, 1) + place * heads
    like, ctx = query.new_empty(()), scoring.ctx
    keys = ctx.key_positions(scoring.window)

    def of_tile(tile: Tile) -> Tensor:
        queries, seen = ctx.part(tile.rows, tile.queries), keys.part(tile.rows, tile.keys)
        pair = {"query": queries.along(-2), "key": seen.along(-1)}
        each = [shift(like, head=numbers, num_heads=heads * parts, **pair) for shift in shifts]
        return sum(each[1:], start=each[0])

    def shared(tile: Tile) -> Tensor:
        where = (tile.rows.start, tile.queries.start, tile.queries.stop, scoring.split_place)
        how = (scoring.mask, scoring.window, *scoring.changes, heads, like.dtype)
        return ctx.cached(("shift", *how, *where), partial(of_tile, tile))

    is_short = len(keys) <= KEEP_UP_TO and not torch.compiler.is_compiling()
    return shared if is_short else of_tile


_MIN_MASKED = 256  # keys from which blocks are faster than torch under a mask in float32


def _in_float32(query: Queries, key: Keys, value: Values, scoring: Scoring) -> Mixed:
    """Call `sdpa` on tensors converted to float32."""
    return sdpa(query.float(), key.float(), value.float(), scoring).to(value.dtype)


def fastest(query: Queries, key: Keys, value: Values, scoring: Scoring) -> Mixed:
    """Call the fastest kernel: `sdpa`, except where another one was measured to be faster.

    On CPUs in bfloat16 its backward pass takes 1.7 to 4 times as long as that of `blockwise`, and a
    single query takes 6 times as long as in float32. In all formats, `blockwise` also computes
    parts of sequences without a mask of all their queries and keys, and leaves out what masks of
    more than 256 keys hide: for documents and windows among 1,024 tokens, it takes 0.2 to 0.45
    times as long as `sdpa`. On GPUs, masks other than the causal one go to FlexAttention.
    """
    return fastest_on(query.device.type, query.dtype, scoring)(query, key, value, scoring)


def fastest_on(device_type: str, dtype: torch.dtype, scoring: Scoring) -> Kernel:
    """Return the kernel that `fastest` calls on a device type, such as "cuda"."""
    plain = scoring.is_softmax and (scoring.is_causal or scoring.sees_all)
    if device_type == "cuda" and not plain:
        return flex
    if not cpu.ENABLED or device_type != "cpu":
        return sdpa
    is_part = not scoring.is_causal and scoring.is_causal_by_spans
    if len(scoring.ctx) == 1 and not is_part:
        return _in_float32 if dtype == torch.bfloat16 else sdpa
    is_masked = not plain and len(scoring.ctx.key_positions(scoring.window)) > _MIN_MASKED
    if dtype == torch.bfloat16 or is_part or is_masked:
        return blockwise
    return sdpa
