"""Position information."""

import fiddle as fdl

from fidgpt.fiddlers.attention import ATTENTIONS, forget_alibi
from fidgpt.fiddlers.latent import fit_rope
from fidgpt.graph import find
from fidgpt.model import (
    ALiBi,
    Embedding,
    LatentAttention,
    LearnedPositions,
    RoPE,
    SinusoidalPositions,
)
from fidgpt.tags import HeadDim, HiddenDim, SeqLen, Theta
from fidgpt.train import Trainer

__all__ = [
    "use_alibi",
    "use_learned_positions",
    "use_no_positions",
    "use_rope",
    "use_sinusoidal_positions",
]


def use_rope(cfg: fdl.Config[Trainer], theta: float = 10_000.0) -> None:
    """Use rotary position embeddings, with one RoPE for all layers."""
    use_no_positions(cfg)
    rope = fdl.Config(RoPE, head_dim=HeadDim.new(), theta=Theta.new(theta))
    for attention in find(cfg.model, *ATTENTIONS):
        attention.rope = rope
        if fdl.get_callable(attention) is LatentAttention:
            fit_rope(rope, attention.rope_head_dim)


def use_alibi(cfg: fdl.Config[Trainer]) -> None:
    """Use ALiBi: scores decrease linearly with the distance, with a slope per head."""
    use_no_positions(cfg)
    alibi = fdl.Config(ALiBi)
    for attention in find(cfg.model, *ATTENTIONS):
        attention.scores = [*attention.scores, alibi]


def use_learned_positions(cfg: fdl.Config[Trainer]) -> None:
    """Add a learned vector for each position to the embedding."""
    use_no_positions(cfg)
    for embedding in find(cfg.model, Embedding):
        embedding.positions = fdl.Config(
            LearnedPositions,
            seq_len=SeqLen.new(),
            hidden_dim=HiddenDim.new(),
            init=embedding.weight.init,
        )


def use_sinusoidal_positions(cfg: fdl.Config[Trainer]) -> None:
    """Add sines and cosines of the position to the embedding."""
    use_no_positions(cfg)
    for embedding in find(cfg.model, Embedding):
        embedding.positions = fdl.Config(SinusoidalPositions, hidden_dim=HiddenDim.new())


def use_no_positions(cfg: fdl.Config[Trainer]) -> None:
    """Use no position information but the causal mask (NoPE, arXiv:2305.19466)."""
    for attention in find(cfg.model, *ATTENTIONS):
        attention.rope = None
        forget_alibi(attention)
    for embedding in find(cfg.model, Embedding):
        embedding.positions = None
