"""Causal attention by blocks of queries, which CPUs compute faster in bfloat16 than torch's own."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

Queries = Float[Tensor, "heads group seq head_dim"]
Keys = Float[Tensor, "heads seq head_dim"]
Values = Float[Tensor, "heads seq value_dim"]
Mixed = Float[Tensor, "heads group seq value_dim"]


def mix(
    queries: Queries, keys: Keys, values: Values, *, scale: float, block_size: int, keeps: bool
) -> tuple[Mixed, list[Tensor]]:
    """Return the weighted values; and the weights of every block, if it `keeps` them."""
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
    """Return the gradients of all three; weights that `mix` did not keep are recomputed."""
    group, seq = queries.shape[1:3]
    # What the softmax subtracts from every score's gradient (Dao et al., 2022, equation 4).
    offsets = (gradient * mixed).sum(-1, keepdim=True)
    query_gradient = queries.new_empty(queries.shape)
    key_gradient, value_gradient = _Sum(), _Sum()
    # The last block sees every key, so its gradients have room for those of the others.
    for number, rows in reversed(list(enumerate(_blocks(seq, block_size)))):
        seen = slice(rows.stop)
        query, above = (x[:, :, rows].flatten(1, 2) for x in (queries, gradient))
        weights = kept[number] if kept else _weights(queries[:, :, rows], keys[:, seen], scale)
        value_gradient.add(weights.mT @ above)
        scores = torch.baddbmm(
            offsets[:, :, rows].flatten(1, 2),
            above,
            values[:, seen].mT,
            beta=-scale,
            alpha=scale,
        ).mul_(weights)
        key_gradient.add(scores.mT @ query)
        query_gradient[:, :, rows] = _ungroup(scores @ keys[:, seen], group)
    return (
        query_gradient,
        key_gradient.total.to(keys.dtype),
        value_gradient.total.to(values.dtype),
    )


class _Sum:
    """The gradient of keys, to which many blocks add: in float32, so that nothing is lost."""

    total: Tensor

    def add(self, part: Float[Tensor, "heads seen head_dim"]) -> None:
        """Add to the first `seen` keys; the first part has all keys."""
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
    """Return the softmax of the scores of the last `block` positions among those seen."""
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


# Kept weights of a layer take seq^2 * heads bytes a row or a little more.
_KEEP_UP_TO = 512


def causal_attention(
    query: Float[Tensor, "batch heads seq head_dim"],
    key: Float[Tensor, "batch kv_heads seq head_dim"],
    value: Float[Tensor, "batch kv_heads seq value_dim"],
    *,
    scale: float,
    block_size: int,
) -> Float[Tensor, "batch heads seq value_dim"]:
    """Return plain causal attention; see `fidgpt.model.kernels.blockwise`."""
    batch, kv_heads, seq = key.shape[:3]
    queries = query.reshape(batch * kv_heads, -1, seq, query.shape[-1])
    keys, values = (x.reshape(batch * kv_heads, seq, -1) for x in (key, value))
    keeps = seq <= _KEEP_UP_TO
    if torch.compiler.is_compiling() and not keeps:
        mixed = _recomputing(queries, keys, values, scale, block_size)
    else:
        mixed = _Blockwise.apply(queries, keys, values, scale, block_size, keeps)
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


# Torch compiles the blocks of short sequences into the code around them. Those of long ones it
# would compile one by one, and keep the weights that are to be recomputed: they are one operator.


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
    return gradients(gradient, *saved, [], scale=scale, block_size=block_size)


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
