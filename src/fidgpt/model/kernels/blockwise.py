"""Causal attention as plain matrix products, which CPUs are quick at in bfloat16."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fidgpt.model.kernels.scoring import Scoring
from fidgpt.model.kernels.sdpa import sdpa

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
    return _Blockwise.apply(query, key, value, scoring.scale, block_size)


class _Blockwise(torch.autograd.Function):
    """Queries that share a key are rows of one product: [heads of keys, group, seq, head_dim]."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, block_size: int
    ) -> Tensor:
        batch, heads, seq, head_dim = query.shape
        kv_heads, value_dim = key.shape[1], value.shape[-1]
        queries = query.reshape(batch * kv_heads, -1, seq, head_dim)
        keys, values = (x.reshape(batch * kv_heads, seq, -1) for x in (key, value))
        mixed, kept = queries.new_empty(*queries.shape[:-1], value_dim), []
        keeps, blocks = seq <= _KEEP_UP_TO, _blocks(seq, block_size)
        # Without memory there is nothing to compute, and what the last block takes is the most.
        for rows in blocks[-1:] if query.is_meta and not keeps else blocks:
            weights = _weights(queries[:, :, rows], keys[:, : rows.stop], scale)
            mixed[:, :, rows] = _ungroup(weights @ values[:, : rows.stop], heads // kv_heads)
            if keeps:
                kept.append(weights)
        ctx.save_for_backward(queries, keys, values, mixed, *kept)
        ctx.scale, ctx.block_size = scale, block_size
        ctx.shapes = (query.shape, key.shape, value.shape)
        return mixed.view(*query.shape[:-1], value_dim)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor | None, ...]:
        queries, keys, values, mixed, *kept = ctx.saved_tensors
        group, seq, scale = queries.shape[1], queries.shape[2], ctx.scale
        gradient = outer[0].reshape(mixed.shape)
        # What the softmax takes off every score's gradient (Dao et al., 2022, equation 4).
        offsets = (gradient * mixed).sum(-1, keepdim=True)
        query_gradient = torch.empty_like(queries)
        key_gradient, value_gradient = _Sum(), _Sum()
        # The last block sees every key, so that its gradients have room for those of the others.
        for number, rows in reversed(list(enumerate(_blocks(seq, ctx.block_size)))):
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
        query_shape, key_shape, value_shape = ctx.shapes
        return (
            query_gradient.view(query_shape),
            key_gradient.total.to(keys.dtype).view(key_shape),
            value_gradient.total.to(values.dtype).view(value_shape),
            None,
            None,
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
