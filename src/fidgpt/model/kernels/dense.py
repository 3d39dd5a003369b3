"""Attention with all scores written out: what the other forms are compared with."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from fidgpt.model.kernels.scoring import Scoring


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
