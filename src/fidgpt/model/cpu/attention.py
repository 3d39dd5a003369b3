"""Attention by blocks of queries, faster than torch's on CPUs in bfloat16."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.autograd.function import once_differentiable

Queries = Float[Tensor, "batch kv_heads group queries head_dim"]
Keys = Float[Tensor, "batch kv_heads keys head_dim"]
Values = Float[Tensor, "batch kv_heads keys value_dim"]
Mixed = Float[Tensor, "batch kv_heads group queries value_dim"]
Visible = Bool[Tensor, "rows one queries keys"]
Documents = Int[Tensor, "rows queries"]

# In bfloat16, kept weights take about seq^2 * heads bytes per row and layer.
KEEP_UP_TO = 1024

# Columns in front of the keys; the last column holds the sinks. A single additional column would
# make products slower.
_SINKS = 8


@dataclass(frozen=True, eq=False)
class Tile:
    """A block of queries, and the keys that at least one of them may see.

    Attributes:
      rows: rows of the batch.
      queries: columns of the queries.
      keys: columns of the keys, with none between them that all queries may not see.
      partial: the part of `keys` that some of the queries may not see.
      bias: what to add to the scores of that part, [rows, 1, queries, partial]; one row for all
        rows that are alike.
    """

    rows: slice
    queries: slice
    keys: slice | Tensor
    partial: slice
    bias: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """How attention is computed.

    Attributes:
      tiles: blocks with all queries.
      scale: factor of the query-key products.
      cap: the scores become `cap * tanh(score / cap)`; None for no cap.
      shift: returns the term to add to the scores of a tile, [rows, heads, queries, keys].
      keeps: whether weights are kept for the backward pass, which recomputes them otherwise.
    """

    tiles: Sequence[Tile]
    scale: float
    cap: float | None = None
    shift: Callable[[Tile], Tensor] | None = None
    keeps: bool = False


def tiles_of(
    visible: Visible,
    documents: Documents | None,
    *,
    block_size: int,
    dtype: torch.dtype,
) -> list[Tile]:
    """Return blocks of at most `block_size` queries, without the keys that none of them may see.

    A block of a single row ends with a document, unless it would be shorter than a quarter of a
    block.

    Args:
      visible: which keys each query may see; one row for all alike.
      documents: of each query; None if every row is one.
      block_size: queries per block.
      dtype: of the scores.
    """
    each, (count, _, queries, _) = visible.view(torch.uint8)[:, 0], visible.shape
    if queries <= block_size:
        # All rows at once: many small products would take longer than what they leave out.
        return [_tile(slice(None), slice(0, queries), each, dtype)]
    tiles = []
    for row in range(count):
        begin, ends = 0, [queries]
        if documents is not None:
            ends = [*(documents[row].diff().nonzero().squeeze(1) + 1).tolist(), queries]
        for end in ends:
            size = end - begin
            if size < block_size // 4 and end < queries:
                continue
            parts = -(-size // block_size)
            edges = [begin + size * part // parts for part in range(parts + 1)]
            rows = slice(row, row + 1) if count > 1 else slice(None)
            tiles += [_tile(rows, slice(*edge), each[rows], dtype) for edge in pairwise(edges)]
            begin = end
    return tiles


def _tiles(
    queries: Tensor,
    keys: Tensor,
    visible: Visible | None,
    documents: Documents | None,
    block_size: int,
    *,
    only_last: bool = False,
) -> list[Tile]:
    """Return the blocks of a mask; without one, of the causal mask of the last positions."""
    if visible is not None:
        return tiles_of(visible, documents, block_size=block_size, dtype=queries.dtype)
    length, tiles = queries.shape[3], []
    firsts = range(0, length, block_size)
    for first in firsts[-1:] if only_last else firsts:
        end = min(first + block_size, length)
        seen, size = keys.shape[2] - length + end, end - first
        # Among the keys before the block, none is in the future.
        bias = queries.new_full((size, size), float("-inf")).triu_(1)
        here = slice(first, end), slice(0, seen), slice(seen - size, seen)
        tiles.append(Tile(slice(None), *here, bias.view(1, 1, size, size)))
    return tiles


def _tile(
    rows: slice, queries: slice, visible: UInt8[Tensor, "rows queries keys"], dtype: torch.dtype
) -> Tile:
    """Return a block of rows; `visible` is 1 where a query may see a key, and 0 elsewhere."""
    seen = visible[:, queries]
    columns = seen.amax((0, 1)).nonzero().squeeze(1)
    if not len(columns):
        columns = columns.new_zeros(1)  # of queries that are padding, whose results are arbitrary
    begin, end = int(columns[0]), int(columns[-1]) + 1
    keys = slice(begin, end) if len(columns) == end - begin else columns
    seen = seen[..., keys]
    partly = (seen.amin((0, 1)) == 0).nonzero().squeeze(1)
    partial = slice(int(partly[0]), int(partly[-1]) + 1) if len(partly) else slice(0, 0)
    hidden = (seen[..., partial] == 0).unsqueeze(1)
    # Not infinity: a query that may see nothing would get NaN.
    bias = hidden.new_zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)
    return Tile(rows, queries, keys, partial, bias)


def mix(
    queries: Queries, keys: Keys, values: Values, sinks: Tensor | None, plan: Plan
) -> tuple[Mixed, list[list[Tensor]]]:
    """Return the weighted values, and the results of `_weights` for each tile if `plan.keeps`."""
    mixed, kept = queries.new_empty(*queries.shape[:-1], values.shape[-1]), []
    keys, values = _with_sinks(sinks, keys, values)
    for tile, query, columns in _parts(queries, sinks, plan):
        results = _weights(query, keys[columns].flatten(0, 1), sinks, tile, plan)
        part = (results[0] @ values[columns].flatten(0, 1)).unflatten(0, (-1, keys.shape[1]))
        mixed[tile.rows, :, :, tile.queries] = part.unflatten(2, (queries.shape[2], -1))
        if plan.keeps:
            kept.append(results)
    return mixed, kept


def gradients(
    gradient: Mixed, saved: Sequence[Any], kept: Sequence[Sequence[Tensor]], plan: Plan
) -> tuple[Queries, Keys, Values, Tensor | None]:
    """Return the gradients of queries, keys, values and sinks.

    Args:
      gradient: gradient of the output.
      saved: queries, keys, values, sinks and the output.
      kept: the results of `_weights` for each tile, from `mix`; empty to recompute them.
      plan: as for `mix`.
    """
    queries, keys, values, sinks, mixed = saved
    # The row sums of dO * O in the gradient of the softmax (Dao et al., 2022, equation 4).
    offsets = (gradient * mixed).sum(-1, keepdim=True)
    query_gradient = queries.new_empty(queries.shape)
    key_gradient = value_gradient = sink_gradient = None
    keys, values = _with_sinks(sinks, keys, values)
    parts = [*_parts(queries, sinks, plan)]
    # The last block of a causal mask sees every key: the gradients of others are added to its own.
    for number in reversed(range(len(parts))):
        tile, query, columns = parts[number]
        # Contiguous, as products of parts would copy them, each for itself.
        above = _block(gradient, tile).flatten(1, 2).contiguous()
        offset = _block(offsets, tile).flatten(1, 2)
        key = keys[columns].flatten(0, 1)
        results = kept[number] if kept else _weights(query, key, sinks, tile, plan)
        weights, size = results[0], query.shape[2]
        query = query.flatten(1, 2).contiguous()
        value_gradient = _added(value_gradient, weights.mT @ above, values, columns)
        scores = torch.baddbmm(
            offset, above, values[columns].flatten(0, 1).mT, beta=-plan.scale, alpha=plan.scale
        )
        scores.mul_(weights)
        if plan.cap is not None:
            scores = torch.ops.aten.tanh_backward(scores, results[1])
        key_gradient = _added(key_gradient, scores.mT @ query, keys, columns)
        part = (scores @ key).unflatten(0, (-1, keys.shape[1]))
        query_gradient[tile.rows, :, :, tile.queries] = part.unflatten(2, (queries.shape[2], -1))
        if sinks is not None:
            each = (results[-1] * offset.squeeze(-1)).view(-1, len(sinks), size)
            each = each.sum((0, 2), dtype=torch.promote_types(each.dtype, torch.float32))
            sink_gradient = each if sink_gradient is None else sink_gradient + each
    assert key_gradient is not None and value_gradient is not None  # of one block or more
    first = 0 if sinks is None else _SINKS
    return (
        query_gradient,
        key_gradient[:, :, first:].to(keys.dtype),
        value_gradient[:, :, first:].to(values.dtype),
        None if sinks is None or sink_gradient is None else sink_gradient.neg_().to(sinks.dtype),
    )


def _parts(
    queries: Queries, sinks: Tensor | None, plan: Plan
) -> Iterator[tuple[Tile, Float[Tensor, "n group block head_dim"], Any]]:
    """Return each tile with its queries and the place of its keys, after `_with_sinks`."""
    for tile in plan.tiles:
        keys = tile.keys
        if sinks is not None and isinstance(keys, slice):
            keys = slice(keys.start, keys.stop + _SINKS)
        elif sinks is not None and isinstance(keys, Tensor):
            keys = torch.cat([torch.arange(_SINKS, device=keys.device), keys + _SINKS])
        yield tile, _block(queries, tile), (tile.rows, slice(None), keys)


def _block(x: Float[Tensor, "batch kv_heads group queries size"], tile: Tile) -> Tensor:
    return x[tile.rows, :, :, tile.queries].flatten(0, 1)


def _with_sinks(sinks: Tensor | None, *parts: Tensor) -> Sequence[Tensor]:
    """Return keys and values with columns for the sinks in front, if there are any."""
    if sinks is None:
        return parts
    return [torch.cat([x.new_zeros(*x.shape[:2], _SINKS, x.shape[3]), x], dim=2) for x in parts]


def _added(total: Tensor | None, part: Tensor, whole: Tensor, columns: Any) -> Tensor:
    """Add the gradient of some keys, in float32 to preserve precision over many blocks."""
    if total is None and part.numel() == whole.numel():
        return part.view(whole.shape)
    wide = torch.promote_types(part.dtype, torch.float32)
    total = whole.new_zeros(whole.shape, dtype=wide) if total is None else total.to(wide)
    total[columns] += part.unflatten(0, (-1, whole.shape[1]))
    return total


def _weights(
    query: Float[Tensor, "n group block head_dim"],
    keys: Float[Tensor, "n seen head_dim"],
    sinks: Tensor | None,
    tile: Tile,
    plan: Plan,
) -> list[Tensor]:
    """Return the weights of a tile, its capped scores without the cap, and the sinks' weights."""
    block = query.shape[2]
    nothing, scale = keys.new_empty(()), plan.scale / (plan.cap or 1)
    scores = torch.baddbmm(nothing, query.flatten(1, 2), keys.mT, beta=0, alpha=scale)
    capped = []
    if plan.cap is not None:
        capped = [_tanh(scores)]
        scores = capped[0] * plan.cap
    first = 0 if sinks is None else _SINKS
    if plan.shift is not None:
        shift = plan.shift(tile)
        scores.view(-1, *shift.shape[1:3], scores.shape[-1])[..., first:].add_(shift)
    if tile.partial.stop > tile.partial.start:
        partial = slice(first + tile.partial.start, first + tile.partial.stop)
        each = scores.view(len(tile.bias), -1, block, scores.shape[-1])
        each[..., partial].add_(tile.bias)
    if sinks is None:
        return [scores.softmax(-1), *capped]
    scores[..., :first] = torch.finfo(scores.dtype).min
    scores.view(-1, len(sinks), block, scores.shape[-1])[..., first - 1] = sinks.view(-1, 1)
    weights = scores.softmax(-1)
    of_sinks = weights[..., first - 1].clone()
    weights[..., first - 1] = 0
    return [weights, *capped, of_sinks]


@torch.library.custom_op("fidgpt::tanh", mutates_args=())  # torch.compile cannot trace it
def _tanh(x: Tensor) -> Tensor:
    """Return tanh; oneDNN's is as exact as torch's, and takes less than half of the time."""
    is_on_cpu = x.device.type == "cpu" and torch.backends.mkldnn.is_available()
    has_bfloat16 = is_on_cpu and torch.ops.mkldnn._is_mkldnn_bf16_supported()  # not with AVX2 alone
    formats = (torch.float32, torch.bfloat16) if has_bfloat16 else (torch.float32,)
    if not is_on_cpu or x.dtype not in formats:
        return x.tanh()
    return x.to_mkldnn().tanh_().to_dense()


@_tanh.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def blockwise_attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    *,
    scale: float,
    block_size: int,
    visible: Visible | None = None,
    documents: Documents | None = None,
    tiles: Sequence[Tile] | None = None,
    keeps: bool = True,
    sinks: Float[Tensor, " heads"] | None = None,
    cap: float | None = None,
    shift: Callable[[Tile], Tensor] | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Return attention by blocks; see `fidgpt.model.kernels.blockwise`.

    Args:
      query: queries; under a causal mask, of the last positions.
      key: keys.
      value: values.
      scale: factor of the query-key products.
      block_size: queries per block.
      visible: which keys each query may see; None for a causal mask.
      documents: of each query, with `visible`; None if every row is one.
      tiles: what `tiles_of` returns of these; None to call it.
      keeps: whether weights are kept for the backward pass, if sequences are short.
      sinks: a score without a key for each head.
      cap: bounds scores; see `Plan`.
      shift: returns the term to add to scores; see `Plan`.
    """
    # A copy only where rows and heads cannot be merged without one, as each block would need it.
    queries, keys, values = (x.flatten(0, 1).unflatten(0, x.shape[:2]) for x in (query, key, value))
    queries = queries.unflatten(1, (key.shape[1], -1))
    keeps &= key.shape[2] <= KEEP_UP_TO
    if torch.compiler.is_compiling() and (visible is not None or not keeps):
        masks = (visible, documents)
        return _operator(queries, keys, values, *masks, scale, block_size, keeps)[0].flatten(1, 2)
    if tiles is None:
        only_last = query.is_meta and not keeps  # of the largest tensors
        tiles = _tiles(queries, keys, visible, documents, block_size, only_last=only_last)
    plan = Plan(tiles=tiles, scale=scale, cap=cap, shift=shift, keeps=keeps)
    if torch.compiler.is_compiling() and len(tiles) == 1 and cap is None:
        # Torch derives the same backward pass, and caches compiled graphs without own functions.
        return mix(queries, keys, values, sinks, plan)[0].flatten(1, 2)
    return _Blockwise.apply(queries, keys, values, sinks, plan).flatten(1, 2)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        queries, keys, values, sinks, ctx.plan = inputs
        mixed, kept = mix(queries, keys, values, sinks, ctx.plan)
        saved = (queries, keys, values, sinks, mixed)
        ctx.save_for_backward(*saved, *(x for results in kept for x in results))
        return mixed

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # only once, as checkpointing requires
        size = len(saved[5:]) // len(ctx.plan.tiles)
        kept = [saved[i : i + size] for i in range(5, len(saved), size)] if size else []
        return *gradients(outer[0], saved[:5], kept, ctx.plan), None


# torch.compile inlines the blocks of short sequences under a causal mask. For long sequences it
# would compile every block separately and keep the weights instead of recomputing them, and it does
# not know the numbers of other masks, so these are one custom operator.


@torch.library.custom_op("fidgpt::blockwise_attention", mutates_args=())
def _operator(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor | None,
    documents: Tensor | None,
    scale: float,
    block_size: int,
    keeps: bool,
) -> tuple[Tensor, Tensor]:
    tiles = _tiles(queries, keys, visible, documents, block_size)
    plan = Plan(tiles=tiles, scale=scale, keeps=keeps)
    mixed, kept = mix(queries, keys, values, None, plan)
    room = _room(queries, keys, keeps)
    for (weights,), part in zip(kept, _split(room, queries, tiles), strict=False):
        part.copy_(weights)
    return mixed, room


def _room(queries: Tensor, keys: Tensor, keeps: bool) -> Tensor:
    """Return room for the kept weights of all pairs; what is never written takes no memory."""
    return queries.new_empty(queries.shape[:4].numel() * keys.shape[2] if keeps else 0)


def _split(room: Tensor, queries: Tensor, tiles: Sequence[Tile]) -> Iterator[Tensor]:
    """Return the memory for the weights of each tile."""
    batch, kv_heads, group, length = queries.shape[:4]
    begin = 0
    for tile in tiles:
        rows, block = (
            len(range(*x.indices(n))) for x, n in ((tile.rows, batch), (tile.queries, length))
        )
        keys = tile.keys
        seen = len(keys) if isinstance(keys, Tensor) else keys.stop - keys.start
        shape = (rows * kv_heads, group * block, seen)
        yield room[begin : begin + math.prod(shape)].view(shape)
        begin += math.prod(shape)


@_operator.register_fake
def _(queries: Tensor, keys: Tensor, values: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return queries.new_empty(*queries.shape[:-1], values.shape[-1]), _room(queries, keys, rest[-1])


@torch.library.custom_op("fidgpt::blockwise_attention_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor | None,
    documents: Tensor | None,
    mixed: Tensor,
    room: Tensor,
    scale: float,
    block_size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    tiles, saved = _tiles(queries, keys, visible, documents, block_size), (queries, keys, values)
    kept = [[part] for part in _split(room, queries, tiles)] if len(room) else []
    return gradients(gradient, (*saved, None, mixed), kept, Plan(tiles=tiles, scale=scale))[:3]


@_backward.register_fake
def _(
    gradient: Tensor, queries: Tensor, keys: Tensor, values: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in (queries, keys, values))


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale, ctx.block_size, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    of_inputs = _backward(gradient, *ctx.saved_tensors, ctx.scale, ctx.block_size)
    return *of_inputs, None, None, None, None, None


_operator.register_autograd(_gradients, setup_context=_save_inputs)
