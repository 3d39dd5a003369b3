"""How a model knows where a token stands."""

import fiddle as fdl

from fidgpt.fiddlers.attention import ATTENTIONS, forget_alibi
from fidgpt.fiddlers.latent import turn_a_share
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


def use_rope(cfg: fdl.Config[Trainer], theta: float = 10_000.0) -> None:
    """Queries and keys are turned by their positions, by one RoPE for all layers."""
    use_no_positions(cfg)
    rope = fdl.Config(RoPE, head_dim=HeadDim.new(), theta=Theta.new(theta))
    for attention in find(cfg.model, *ATTENTIONS):
        attention.rope = rope
        if fdl.get_callable(attention) is LatentAttention:
            turn_a_share(rope, attention.rope_head_dim)


def use_alibi(cfg: fdl.Config[Trainer]) -> None:
    """Each score falls with the distance, in each head at a rate of its own."""
    use_no_positions(cfg)
    alibi = fdl.Config(ALiBi)
    for attention in find(cfg.model, *ATTENTIONS):
        attention.scores = [*attention.scores, alibi]


def use_learned_positions(cfg: fdl.Config[Trainer]) -> None:
    """Each position has a learned vector, added to the token's."""
    use_no_positions(cfg)
    for embedding in find(cfg.model, Embedding):
        embedding.positions = fdl.Config(
            LearnedPositions,
            seq_len=SeqLen.new(),
            hidden_dim=HiddenDim.new(),
            init=embedding.weight.init,
        )


def use_sinusoidal_positions(cfg: fdl.Config[Trainer]) -> None:
    """Each position has a vector of sines and cosines, added to the token's."""
    use_no_positions(cfg)
    for embedding in find(cfg.model, Embedding):
        embedding.positions = fdl.Config(SinusoidalPositions, hidden_dim=HiddenDim.new())


def use_no_positions(cfg: fdl.Config[Trainer]) -> None:
    """Nothing tells where a token stands but the mask (NoPE, arXiv:2305.19466)."""
    for attention in find(cfg.model, *ATTENTIONS):
        attention.rope = None
        forget_alibi(attention)
    for embedding in find(cfg.model, Embedding):
        embedding.positions = None
