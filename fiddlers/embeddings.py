"""Token embedding and unembedding."""

import fiddle as fdl

from fidgpt.graph import clone_part
from fidgpt.train import Trainer

__all__ = ["tie_embeddings", "untie_embeddings"]


def tie_embeddings(cfg: fdl.Config[Trainer]) -> None:
    """Use one table for the embedding and the unembedding."""
    cfg.model.unembedding.weight = cfg.model.embedding.weight


def untie_embeddings(cfg: fdl.Config[Trainer]) -> None:
    """Use separate tables for the embedding and the unembedding."""
    cfg.model.unembedding.weight = clone_part(cfg.model.embedding.weight)
