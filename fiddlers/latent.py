"""Latent attention in the place of any other."""

from typing import Any

import fiddle as fdl

from fidgpt.graph import parts, swap_all
from fidgpt.graph.fiddle import raw_arguments
from fidgpt.model import Attention, RoPE
from fidgpt.model.mla import LatentAttention, latent_rank, rotary_share
from fidgpt.tags import HeadDim
from fidgpt.train import Trainer


def use_mla(
    cfg: fdl.Config[Trainer],
    kv_rank: int | None = None,
    query_rank: int | None = None,
    rope_head_dim: int | None = None,
    value_head_dim: int | None = None,
) -> None:
    """Keys and values of all heads are made of one small vector a token (DeepSeek-V2).

    What is not given stays as it is where attention is latent already, and is else in DeepSeek's
    proportions to the size of a head. Heads stay as many as they are; grouped keys and norms of
    queries and keys, of which there are none here, are left behind.

    Args:
      cfg: the graph to change.
      kv_rank: size of the vector that is kept of a token; 4 * head_dim.
      query_rank: size of a vector that queries are made of; they are made of the stream itself.
      rope_head_dim: dimensions that turn, beside those of a head; half as many.
      value_head_dim: size of a head's value; that of a head.
    """
    given = {
        "kv_rank": kv_rank,
        "query_rank": query_rank,
        "rope_head_dim": rope_head_dim,
        "value_head_dim": value_head_dim,
    }
    for attention in swap_all(cfg.model, Attention, LatentAttention, by=LatentAttention):
        if "kv_rank" not in raw_arguments(attention):
            attention.kv_rank = fdl.Config(latent_rank, head_dim=HeadDim.new())
        for name, size in given.items():
            if size is not None:
                setattr(attention, name, size)
        turn_a_share(attention.rope, rope_head_dim)


def turn_a_share(rope: Any, size: int | None = None) -> None:
    """A RoPE for whole heads turns what a latent attention has to turn.

    Args:
      rope: what an attention holds as its RoPE.
      size: dimensions that turn; half of a head, unless the RoPE says otherwise already.
    """
    for part in (node.value for node in parts(rope)):
        if fdl.get_callable(part) is not RoPE:
            continue
        if HeadDim in fdl.get_tags(part, "head_dim"):
            fdl.remove_tag(part, "head_dim", HeadDim)  # what it has is no longer that of a head
            part.head_dim = fdl.Config(rotary_share, head_dim=HeadDim.new())
        if size is not None:
            part.head_dim = size
