"""How a model knows where a token stands."""

import fiddle as fdl

from fidgpt.graph import find
from fidgpt.model import Attention, Embedding, LearnedPositions, RoPE
from fidgpt.tags import HeadDim, HiddenDim, SeqLen
from fidgpt.train import Trainer


def use_rope(cfg: fdl.Config[Trainer], theta: float = 10_000.0) -> None:
    """Queries and keys are turned by their positions, by one RoPE for all layers."""
    rope = fdl.Config(RoPE, head_dim=HeadDim.new(), theta=theta)
    for attention in find(cfg.model, Attention):
        attention.rope = rope
    for embedding in find(cfg.model, Embedding):
        embedding.positions = None


def use_learned_positions(cfg: fdl.Config[Trainer]) -> None:
    """Each position has a learned vector, added to the token's."""
    for attention in find(cfg.model, Attention):
        attention.rope = None
    for embedding in find(cfg.model, Embedding):
        embedding.positions = fdl.Config(
            LearnedPositions,
            seq_len=SeqLen.new(),
            hidden_dim=HiddenDim.new(),
            init=embedding.weight.init,
        )
