"""Connections from earlier points of the residual stream, and what enters it."""

from typing import Any

import fiddle as fdl

from fidgpt.fiddlers.attention import use_value_embeddings
from fidgpt.fiddlers.patterns import repeated
from fidgpt.graph import clone_part, find, swap_all
from fidgpt.graph.binding import numbers_in
from fidgpt.model import (
    Attention,
    Backout,
    Embedding,
    GatedValueEmbedding,
    InputScalars,
    NormalizedEmbedding,
    SmearedEmbedding,
    Transformer,
    ValueEmbedding,
    WeightlessRMSNorm,
)
from fidgpt.ranges import require_size
from fidgpt.tags import HiddenDim, NumLayers
from fidgpt.train import Trainer

__all__ = [
    "use_backout",
    "use_embedding_norm",
    "use_gated_value_embeddings",
    "use_input_scalars",
    "use_smear",
]


def use_input_scalars(cfg: fdl.Config[Trainer]) -> None:
    """Weight the stream and the embedding in the input of each layer (modded-nanogpt)."""
    _add_skip(cfg, fdl.Config(InputScalars, num_layers=NumLayers.new()))


def use_backout(cfg: fdl.Config[Trainer]) -> None:
    """Subtract a learned share of the middle layer's output from the last one's (nanochat)."""
    _add_skip(cfg, fdl.Config(Backout))


def use_embedding_norm(cfg: fdl.Config[Trainer], eps: float | None = 1e-5) -> None:
    """Normalize token embeddings, without weights."""
    if any(fdl.get_callable(node) is Embedding for node in find(cfg.model, Embedding)):
        swap_all(cfg.model, Embedding, by=NormalizedEmbedding)
    for embedding in find(cfg.model, Embedding):
        embedding.norm = fdl.Config(WeightlessRMSNorm, hidden_dim=HiddenDim.new(), eps=eps)


def use_smear(cfg: fdl.Config[Trainer], num_channels: int = 24) -> None:
    """Add a gated share of the embedding of the token before to each embedding (modded-nanogpt).

    Args:
      cfg: the graph to change.
      num_channels: first elements of an embedding that its gate reads.
    """
    for embedding in swap_all(cfg.model, Embedding, by=SmearedEmbedding):
        embedding.num_channels = num_channels


def use_gated_value_embeddings(
    cfg: fdl.Config[Trainer], every: int = 2, num_channels: int = 12
) -> None:
    """Add a token embedding to the values of attention, gated by the stream (nanochat).

    Args:
      cfg: the graph to change.
      every: how often a layer has one, counted from the last layer, which has.
      num_channels: first elements of the stream that a gate reads.
    """
    require_size(every=every)
    use_value_embeddings(cfg)
    depth_of = numbers_in(cfg)
    for model in find(cfg, Transformer):
        depth = depth_of(model, "num_layers")
        model.blocks = repeated(model.blocks, every, num_layers=depth)
        last = depth - 1 if isinstance(depth, int) else every - 1
        for index, block in [*enumerate(model.first_blocks), *enumerate(model.blocks)]:
            for attention in find(block, Attention):
                if (last - index) % every:
                    attention.value_embedding = None
        for part in swap_all(model, ValueEmbedding, by=GatedValueEmbedding):
            part.num_channels = num_channels


def _add_skip(cfg: fdl.Config[Trainer], new: fdl.Config[Any]) -> None:
    """Add a connection to every model, in place of one of its kind."""
    kind = fdl.get_callable(new)
    for model in find(cfg, Transformer):
        others = [skip for skip in model.skips if fdl.get_callable(skip) is not kind]
        model.skips = [*others, clone_part(new)]
