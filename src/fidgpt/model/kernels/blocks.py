"""Causal attention and its gradients, a block of queries after the other.

Queries that share a key are rows of one product: [heads, group, seq, head_dim], where `heads` are
the key heads of all sequences; keys and values are [heads, seq, dim].
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

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
