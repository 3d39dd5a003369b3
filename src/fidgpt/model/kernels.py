"""Attention kernels: from queries, keys and values to the weighted values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
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
from fidgpt.model.cpu.attention import causal_attention
from fidgpt.model.masks import Mask, ScoreChange, causal, is_causal_among

__all__ = ["Kernel", "Scoring", "blockwise", "eager", "fastest", "flex", "sdpa"]


Queries = Float[Tensor, "batch heads queries head_dim"]
Keys = Float[Tensor, "batch kv_heads keys head_dim"]
Values = Float[Tensor, "batch kv_heads keys value_dim"]
Mixed = Float[Tensor, "batch heads queries value_dim"]
Scores = Float[Tensor, "batch heads queries keys"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Scoring:
    """How much weight a query gives to each key.

    The weights are the softmax, over the keys that the query may see, of the products of query and
    key times `scale`, after `changes`. A sink takes part in the softmax and has no value.

    Attributes:
      ctx: of the pass.
      scale: of the products.
      mask: which keys a query may see.
      window: sliding-window size in tokens, including the query; None for full attention.
      changes: of the scores, in order.
      sinks: for each head, a score that belongs to no key.
      dropout: probability of dropping a weight.
    """

    ctx: AttentionContext
    scale: float
    mask: Mask = causal
    window: int | None = None
    changes: Sequence[ScoreChange] = ()
    sinks: Float[Tensor, " heads"] | None = None
    dropout: float = 0.0

    @property
    def is_softmax(self) -> bool:
        """Whether scores are products times the scale, and nothing else."""
        return len(self.changes) == 0 and self.sinks is None  # `not` does not compile

    @property
    def is_causal(self) -> bool:
        """Whether, without looking at positions, each query is known to see all keys up to it."""
        keys = self.ctx.key_positions(self.window)
        same = keys.positions is self.ctx.positions and self.ctx.contiguous
        return same and is_causal_among(self.mask, self.window, num_keys=len(keys))

    @property
    def sees_all(self) -> bool:
        """Whether there is one query, which is known to see every key."""
        keys = self.ctx.key_positions(self.window)
        one = len(self.ctx) == 1 and self.ctx.contiguous and keys.contiguous
        return one and is_causal_among(self.mask, self.window, num_keys=len(keys))

    def visible(self) -> Bool[Tensor, "rows one queries keys"]:
        """Return which keys each query may see."""
        return self.ctx.visible(self.mask, window=self.window)


@runtime_checkable
class Kernel(Protocol):
    """Computes attention."""

    def __call__(self, query: Queries, key: Keys, value: Values, scoring: Scoring, /) -> Mixed:
        """Return the weighted values of each query; neighboring query heads share a key head."""
        ...


def eager(query: Queries, key: Keys, value: Values, scoring: Scoring) -> Mixed:
    """Compute any `Scoring` step by step, with memory for every score of a layer.

    A query that may see nothing, which is padding, gets an arbitrary value, but no NaN.
    """
    heads, kv_heads = query.shape[1], key.shape[1]
    grouped = (query * scoring.scale).unflatten(1, (kv_heads, heads // kv_heads))
    scores = (grouped @ key.unsqueeze(2).mT).flatten(1, 2)
    if scoring.changes:
        numbers = torch.arange(heads, device=query.device).view(-1, 1, 1)
        query_at, key_at = (
            scoring.ctx.along(-2),
            scoring.ctx.key_positions(scoring.window).along(-1),
        )
        for change in scoring.changes:
            scores = change(scores, head=numbers, num_heads=heads, query=query_at, key=key_at)
    if not scoring.sees_all:
        scores = scores.masked_fill(~scoring.visible(), torch.finfo(scores.dtype).min)
    weights = _softmax(scores, scoring.sinks).to(value.dtype)
    weights = F.dropout(weights, scoring.dropout)
    mixed = weights.unflatten(1, (kv_heads, heads // kv_heads)) @ value.unsqueeze(2)
    return mixed.flatten(1, 2)


def _softmax(scores: Scores, sinks: Float[Tensor, " heads"] | None) -> Scores:
    """Return the softmax, in float32 at least, without the column of the sinks."""
    wide = torch.promote_types(scores.dtype, torch.float32)
    if sinks is None:
        return scores.softmax(-1, dtype=wide)
    column = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1, dtype=wide)[..., :-1]


def sdpa(query: Queries, key: Keys, value: Values, scoring: Scoring) -> Mixed:
    """Call torch's scaled_dot_product_attention, or `eager` where scores are changed."""
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

    Dropout, gradients on a CPU and meta tensors are left to `sdpa`.
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
    # A sink s beside scores of log-sum-exp l leaves them e^l / (e^l + e^s) of the weight.
    share = torch.sigmoid(extra.lse - scoring.sinks.float().view(-1, 1))
    return mixed * share.unsqueeze(-1).to(mixed.dtype)


@cache
def _compiled(device: str) -> Callable[..., tuple[Tensor, AuxOutput]]:
    """Only the compiled form is fused; a CPU needs no compiler for the other one."""
    return flex_attention if device == "cpu" else torch.compile(flex_attention)


def _block_mask(scoring: Scoring, device: torch.device) -> BlockMask:
    """Return which blocks of scores are needed, computed once for all layers."""
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
    """Return all changes of one score, as FlexAttention takes them."""
    queries, keys = scoring.ctx, scoring.ctx.key_positions(scoring.window)

    def change(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_at, key_at = queries.at(batch, query), keys.at(batch, key)
        for one in scoring.changes:
            score = one(score, head=head, num_heads=num_heads, query=query_at, key=key_at)
        return score

    return change if scoring.changes else None


def blockwise(
    query: Queries, key: Keys, value: Values, scoring: Scoring, *, block_size: int = 128
) -> Mixed:
    """Compute plain causal attention by blocks of queries, and leave the rest to `sdpa`.

    Each block is a matrix product with the keys up to its end, which saves up to half of the work.
    The weights of long sequences exist for one block at a time, and the backward pass recomputes
    them, as in FlashAttention (Dao et al., 2022, arXiv:2205.14135, section 3.1); those of short
    ones are kept, which saves a seventh of the time.
    """
    if not (scoring.is_softmax and scoring.is_causal) or scoring.dropout:
        return sdpa(query, key, value, scoring)
    return causal_attention(query, key, value, scale=scoring.scale, block_size=block_size)


def fastest(query: Queries, key: Keys, value: Values, scoring: Scoring) -> Mixed:
    """Call the fastest kernel: `sdpa` except where another one is measured to be faster.

    In bfloat16 on a CPU its backward pass takes 1.7 to 4 times as long as plain matrix products.
    On a GPU, masks other than the causal one go to FlexAttention.
    """
    return fastest_on(query.device.type, query.dtype, scoring)(query, key, value, scoring)


def fastest_on(device_type: str, dtype: torch.dtype, scoring: Scoring) -> Kernel:
    """Return the kernel that `fastest` calls on a kind of device, such as `cuda`."""
    plain = scoring.is_softmax and (scoring.is_causal or scoring.sees_all)
    if device_type == "cuda" and not plain:
        return flex
    if cpu.ENABLED and device_type == "cpu" and dtype == torch.bfloat16:
        return blockwise
    return sdpa
