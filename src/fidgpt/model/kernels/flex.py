"""Attention by FlexAttention: any mask and any change of scores, fused into one GPU kernel."""

from collections.abc import Callable
from functools import cache, partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxOutput,
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

from fidgpt.model.kernels.scoring import Scoring
from fidgpt.model.kernels.sdpa import sdpa
from fidgpt.model.layout import Places
from fidgpt.model.masks import Token


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


def _at(places: Places, row: Tensor, column: Tensor) -> Token:
    """One token; a single row of positions stands for all."""
    row = row if len(places.positions) > 1 else torch.zeros_like(row)
    position = places.positions[row, column]
    return Token(position, None if places.documents is None else places.documents[row, column])
