"""The table that reads tokens in and the one that scores them out."""

import fiddle as fdl

from fidgpt.graph import clone_part
from fidgpt.train import Trainer


def tie_embeddings(cfg: fdl.Config[Trainer]) -> None:
    """One table both reads tokens in and scores them out."""
    cfg.model.unembedding.weight = cfg.model.embedding.weight


def untie_embeddings(cfg: fdl.Config[Trainer]) -> None:
    """Tokens are scored against a table of their own."""
    cfg.model.unembedding.weight = clone_part(cfg.model.embedding.weight)
