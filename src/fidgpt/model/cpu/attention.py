"""Causal attention by blocks of queries, faster than torch's on CPUs in bfloat16."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

Queries = Float[Tensor, "heads group queries head_dim"]
Keys = Float[Tensor, "heads seq head_dim"]
Values = Float[Tensor, "heads seq value_dim"]
Mixed = Float[Tensor, "heads group queries value_dim"]


def mix(
    queries: Queries, keys: Keys, values: Values, *, scale: float, block_size: int, keeps: bool
) -> tuple[Mixed, list[Tensor]]:
    """Return the weighted values, and the attention weights of every block if `keeps`.

    The queries are the last positions of the keys.
    """
    group, seq = queries.shape[1:3]
    before = keys.shape[1] - seq
    mixed, kept = queries.new_empty(*queries.shape[:-1], values.shape[-1]), []
    firsts = range(0, seq, block_size)
    # On the meta device one block is enough: the last one has the largest tensors.
    for first in firsts[-1:] if queries.is_meta and not keeps else firsts:
        rows = slice(first, min(first + block_size, seq))
        seen = slice(before + rows.stop)
        weights = _weights(queries[:, :, rows], keys[:, seen], scale)
        mixed[:, :, rows] = (weights @ values[:, seen]).unflatten(1, (group, -1))
        if keeps:
            kept.append(weights)
    return mixed, kept


def gradients(
    gradient: Mixed, saved: Sequence[Tensor], *, scale: float, block_size: int
) -> tuple[Queries, Keys, Values]:
    """Return the gradients of queries, keys and values, recomputing weights that were not kept.

    Args:
      gradient: gradient of the output.
      saved: queries, keys, values, the output, and the weights of every block if they were kept.
      scale: factor of the query-key products.
      block_size: queries per block.
    """
    queries, keys, values, mixed, *kept = saved
    group, seq = queries.shape[1:3]
    before = keys.shape[1] - seq
    # The row sums of dO * O in the gradient of the softmax (Dao et al., 2022, equation 4).
    offsets = (gradient * mixed).sum(-1, keepdim=True)
    query_gradient = queries.new_empty(queries.shape)
    key_gradient = value_gradient = None
    # The last block sees every key, so the other blocks' gradients are added to its own.
    for first in reversed(range(0, seq, block_size)):
        rows, number = slice(first, min(first + block_size, seq)), first // block_size
        seen = slice(before + rows.stop)
        # Contiguous, as products of parts would copy them, each for itself.
        query, above = (x[:, :, rows].flatten(1, 2).contiguous() for x in (queries, gradient))
        weights = kept[number] if kept else _weights(queries[:, :, rows], keys[:, seen], scale)
        value_gradient = _added(value_gradient, weights.mT @ above)
        offset = offsets[:, :, rows].flatten(1, 2)
        scores = torch.baddbmm(offset, above, values[:, seen].mT, beta=-scale, alpha=scale)
        scores.mul_(weights)
        key_gradient = _added(key_gradient, scores.mT @ query)
        query_gradient[:, :, rows] = (scores @ keys[:, seen]).unflatten(1, (group, -1))
    assert key_gradient is not None and value_gradient is not None  # of one block or more
    return query_gradient, key_gradient.to(keys.dtype), value_gradient.to(values.dtype)


def _added(total: Tensor | None, part: Tensor) -> Tensor:
    """Add the gradient of the first keys, in float32 to preserve precision over many blocks."""
    if total is None:
        return part
    total = total.to(torch.promote_types(part.dtype, torch.float32))
    total[:, : part.shape[1]] += part
    return total


def _weights(queries: Queries, keys: Tensor, scale: float) -> Float[Tensor, "heads rows seen"]:
    """Return the attention weights of a block, whose queries are the last positions of its keys."""
    group, block = queries.shape[1:3]
    seen = keys.shape[1]
    query, nothing = queries.flatten(1, 2), keys.new_empty(())
    scores = torch.baddbmm(nothing, query, keys.mT, beta=0, alpha=scale)
    # Among the keys before the block, none is in the future.
    future = keys.new_full((block, block), float("-inf")).triu_(1)
    scores.unflatten(1, (group, block))[..., seen - block :].add_(future)
    return scores.softmax(-1)


# In bfloat16, kept weights take about seq^2 * heads bytes per row and layer.
KEEP_UP_TO = 1024


def causal_attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads seq head_dim"],
    value: Float[Tensor, "batch kv_heads seq value_dim"],
    *,
    scale: float,
    block_size: int,
    keep_up_to: int = KEEP_UP_TO,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Return causal attention of the last positions; see `fidgpt.model.kernels.blockwise`."""
    batch, kv_heads, seq = key.shape[:3]
    queries = query.reshape(batch * kv_heads, -1, *query.shape[2:])
    keys, values = (x.reshape(batch * kv_heads, seq, -1) for x in (key, value))
    keeps = seq <= keep_up_to
    if torch.compiler.is_compiling() and not keeps:
        mixed = _recomputing(queries, keys, values, scale, block_size)
    elif torch.compiler.is_compiling() and queries.shape[2] <= block_size:
        # Torch derives the same backward pass, and caches compiled graphs without own functions.
        mixed = _weights(queries, keys, scale) @ values
    else:
        mixed = _Blockwise.apply(queries, keys, values, scale, block_size, keeps)
    return mixed.view(*query.shape[:-1], -1)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        queries, keys, values, ctx.scale, ctx.block_size, keeps = inputs
        sizes = {"scale": ctx.scale, "block_size": ctx.block_size}
        mixed, kept = mix(queries, keys, values, **sizes, keeps=keeps)
        ctx.save_for_backward(queries, keys, values, mixed, *kept)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor | None, ...]:
        sizes = {"scale": ctx.scale, "block_size": ctx.block_size}
        return *gradients(outer[0], ctx.saved_tensors, **sizes), None, None, None


# torch.compile inlines the blocks of short sequences. For long sequences it would compile every
# block separately and keep the weights instead of recomputing them, so they are one custom
# operator.


@torch.library.custom_op("fidgpt::blockwise_attention", mutates_args=())
def _recomputing(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, block_size: int
) -> Tensor:
    return mix(queries, keys, values, scale=scale, block_size=block_size, keeps=False)[0]


@_recomputing.register_fake
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
    return gradients(gradient, saved, scale=scale, block_size=block_size)


@_backward.register_fake
def _(
    gradient: Tensor, queries: Tensor, keys: Tensor, values: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (queries, keys, values))


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.scale, ctx.block_size = inputs
    ctx.save_for_backward(*tensors, output)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(gradient, *ctx.saved_tensors, ctx.scale, ctx.block_size), None, None


_recomputing.register_autograd(_gradients, setup_context=_save_inputs)
