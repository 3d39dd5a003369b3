"""Causal attention itself, from queries, keys and values, in the form that suits the device."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

Kernel = Callable[[Tensor, Tensor, Tensor, float], Tensor]

# Kept weights of a layer take seq^2 * heads bytes a row or a little more.
_KEEP_UP_TO = 512


def causal_attention(
    query: Float[Tensor, "batch heads seq head_dim"],
    key: Float[Tensor, "batch kv_heads seq head_dim"],
    value: Float[Tensor, "batch kv_heads seq head_dim"],
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Causal attention, scaled by 1 / sqrt(head_dim), by what is fastest here.

    That is torch's own kernel nearly everywhere, but not in bfloat16 on a CPU, where its backward
    pass takes 1.7 to 4 times as long as plain matrix products.
    """
    plain = query.device.type == "cpu" and query.dtype == torch.bfloat16 and not dropout
    if plain and not torch.compiler.is_compiling():
        return blockwise(query, key, value)
    return sdpa(query, key, value, dropout)


def sdpa(
    query: Float[Tensor, "batch heads seq head_dim"],
    key: Float[Tensor, "batch kv_heads seq head_dim"],
    value: Float[Tensor, "batch kv_heads seq head_dim"],
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Causal attention, scaled by 1 / sqrt(head_dim), by torch's own kernels."""
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=True, dropout_p=dropout, enable_gqa=grouped
    )


def blockwise(
    query: Float[Tensor, "batch heads seq head_dim"],
    key: Float[Tensor, "batch kv_heads seq head_dim"],
    value: Float[Tensor, "batch kv_heads seq head_dim"],
    *,
    block_size: int = 128,
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Causal attention as matrix products of a block of queries with the keys up to its end.

    Keys after a block are never touched, which saves up to half of the work. The weights of long
    sequences exist for one block at a time, and the backward pass computes them anew, as in
    FlashAttention (Dao et al., 2022, https://arxiv.org/abs/2205.14135, section 3.1); those of
    short ones are kept, which saves a seventh of the time.
    """
    return _Blockwise.apply(query, key, value, block_size)


class _Blockwise(torch.autograd.Function):
    """Queries that share a key are rows of one product: [heads of keys, group, seq, head_dim]."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, block_size: int) -> Tensor:
        batch, heads, seq, head_dim = query.shape
        kv_heads = key.shape[1]
        queries = query.reshape(batch * kv_heads, -1, seq, head_dim)
        keys, values = (x.reshape(batch * kv_heads, seq, head_dim) for x in (key, value))
        mixed, kept = torch.empty_like(queries), []
        for rows in _blocks(seq, block_size):
            weights = _weights(queries[:, :, rows], keys[:, : rows.stop])
            mixed[:, :, rows] = _ungroup(weights @ values[:, : rows.stop], heads // kv_heads)
            if seq <= _KEEP_UP_TO:
                kept.append(weights)
        ctx.save_for_backward(queries, keys, values, mixed, *kept)
        ctx.block_size, ctx.shapes = block_size, (query.shape, key.shape)
        return mixed.view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor | None, ...]:
        queries, keys, values, mixed, *kept = ctx.saved_tensors
        _, group, seq, head_dim = queries.shape
        scale = head_dim**-0.5
        gradient = outer[0].reshape(queries.shape)
        # What the softmax takes off every score's gradient (Dao et al., 2022, equation 4).
        offsets = (gradient * mixed).sum(-1, keepdim=True)
        query_gradient = torch.empty_like(queries)
        key_gradient, value_gradient = _Sum(), _Sum()
        # The last block sees every key, so that its gradients have room for those of the others.
        for number, rows in reversed(list(enumerate(_blocks(seq, ctx.block_size)))):
            seen = slice(rows.stop)
            asked, above = (x[:, :, rows].flatten(1, 2) for x in (queries, gradient))
            weights = kept[number] if kept else _weights(queries[:, :, rows], keys[:, seen])
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
        query_shape, key_shape = ctx.shapes
        return (
            query_gradient.view(query_shape),
            key_gradient.total.to(keys.dtype).view(key_shape),
            value_gradient.total.to(values.dtype).view(key_shape),
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
    queries: Float[Tensor, "heads group block head_dim"], keys: Float[Tensor, "heads seen head_dim"]
) -> Float[Tensor, "heads group_block seen"]:
    """Softmax of the scores of the last `block` positions among those seen."""
    _, group, block, head_dim = queries.shape
    seen = keys.shape[1]
    future = keys.new_full((block, seen), float("-inf")).triu_(seen - block + 1)
    return torch.baddbmm(
        future.repeat(group, 1), queries.flatten(1, 2), keys.mT, alpha=head_dim**-0.5
    ).softmax(-1)


def _ungroup(
    rows: Float[Tensor, "heads group_block head_dim"], group: int
) -> Float[Tensor, "heads group block head_dim"]:
    return rows.unflatten(1, (group, -1))
