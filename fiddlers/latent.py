"""Multi-head latent attention."""

from typing import Any

import fiddle as fdl

from fidgpt.graph import find, parts, swap_all
from fidgpt.graph.fiddle import raw_arguments
from fidgpt.model import Attention, DenseIndexerLoss, Indexer, IndexerLoss, RoPE
from fidgpt.model.mla import LatentAttention, latent_rank, rotary_share
from fidgpt.optim import ByName
from fidgpt.tags import HeadDim
from fidgpt.train import Trainer

__all__ = ["use_indexer", "use_indexer_warmup", "use_mla"]


def use_mla(
    cfg: fdl.Config[Trainer],
    kv_rank: int | None = None,
    query_rank: int | None = None,
    rope_head_dim: int | None = None,
    value_head_dim: int | None = None,
) -> None:
    """Replace attention by multi-head latent attention (DeepSeek-V2).

    Defaults are the current values if attention is latent already, else DeepSeek's ratios to the
    head size. The number of heads is kept; grouped keys and QK-norms are removed.

    Args:
      cfg: the graph to change.
      kv_rank: size of the cached latent; defaults to 4 * head_dim.
      query_rank: size of the latent of queries; defaults to no latent.
      rope_head_dim: rotary dimensions of a head; defaults to half of head_dim.
      value_head_dim: size of a head's value; defaults to head_dim.
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
        fit_rope(attention.rope, rope_head_dim)


def use_indexer(cfg: fdl.Config[Trainer], top_k: int | None = None, weight: float = 1.0) -> None:
    """Let latent attention select keys, by small heads that learn from it (DeepSeek-V3.2).

    Other attention becomes latent, as by `use_mla`. An indexer that is there keeps its sizes, as
    that of a checkpoint, and is trained.

    Args:
      cfg: the graph to change.
      top_k: keys of a query; defaults to the current number, or 2,048.
      weight: weight of the loss of each layer.
    """
    _train_indexers(cfg, IndexerLoss, top_k, weight)


def use_indexer_warmup(
    cfg: fdl.Config[Trainer], top_k: int | None = None, weight: float = 1.0
) -> None:
    """Train nothing but the indexers, while latent attention is to all keys.

    DeepSeek-V3.2 does so for 1,000 steps with a learning rate of 0.001, before `use_indexer`.

    Args:
      cfg: the graph to change.
      top_k: as of `use_indexer`, in evaluation.
      weight: weight of the loss of each layer.
    """
    _train_indexers(cfg, DenseIndexerLoss, top_k, weight)
    cfg.trainable = fdl.Config(ByName, "[.]indexer[.]")


_MIXERS = (Attention, LatentAttention)


def _train_indexers(
    cfg: fdl.Config[Trainer], objective: Any, top_k: int | None, weight: float
) -> None:
    if any(fdl.get_callable(part) is not LatentAttention for part in find(cfg.model, *_MIXERS)):
        use_mla(cfg)
    for attention in find(cfg.model, LatentAttention):
        if attention.indexer is None:
            attention.indexer = fdl.Partial(Indexer)
        attention.indexer.objective = fdl.Config(objective, weight=weight)
        if top_k is not None:
            attention.indexer.top_k = top_k


def fit_rope(rope: Any, size: int | None = None) -> None:
    """Fit a RoPE for whole heads to the rotary dimensions of latent attention.

    Args:
      rope: the RoPE of an attention.
      size: rotary dimensions; defaults to the size of the RoPE, or else half of head_dim.
    """
    for part in (node.value for node in parts(rope)):
        if fdl.get_callable(part) is not RoPE:
            continue
        if HeadDim in fdl.get_tags(part, "head_dim"):
            fdl.remove_tag(part, "head_dim", HeadDim)  # its size is no longer a head's size
            part.head_dim = fdl.Config(rotary_share, head_dim=HeadDim.new())
        if size is not None:
            part.head_dim = size
