"""What a block is made of, beside attention, and how blocks repeat over the depth."""

from collections.abc import Callable

import fiddle as fdl
from torch import nn

from fidgpt.graph import ConfigError, clone_part, find, swapped
from fidgpt.model import GELU, Block, RMSNorm, SwiGLU, Transformer
from fidgpt.tags import HiddenDim
from fidgpt.train import Trainer


def use_swiglu(cfg: fdl.Config[Trainer]) -> None:
    """MLPs are gated by a SiLU."""
    for block in find(cfg.model, Block):
        block.mlp = swapped(block.mlp, SwiGLU)


def use_gelu(cfg: fdl.Config[Trainer]) -> None:
    """MLPs are plain, with GPT-2's GELU."""
    for block in find(cfg.model, Block):
        block.mlp = swapped(block.mlp, GELU)


def use_rms_norm(cfg: fdl.Config[Trainer], eps: float = 1e-5) -> None:
    """Every norm divides by the root mean square alone."""
    _use_norm(cfg, lambda kind: kind(RMSNorm, hidden_dim=HiddenDim.new(), eps=eps))


def use_layer_norm(cfg: fdl.Config[Trainer], eps: float = 1e-5) -> None:
    """Every norm takes off the mean too, and has a bias."""
    _use_norm(cfg, lambda kind: kind(nn.LayerNorm, normalized_shape=HiddenDim.new(), eps=eps))


def unroll(cfg: fdl.Config[Trainer]) -> None:
    """Every layer gets a block of its own in the graph, so that one of them can be changed.

    What the layers shared they still share.
    """
    for model in find(cfg, Transformer):
        pattern, num_layers = model.blocks, model.num_layers
        if not isinstance(num_layers, int):
            raise ConfigError("unroll needs to know model.num_layers as a number.")
        model.blocks = [clone_part(pattern[i % len(pattern)]) for i in range(num_layers)]


def _use_norm(
    cfg: fdl.Config[Trainer], norm: Callable[[type[fdl.Buildable]], fdl.Buildable]
) -> None:
    """Puts a norm, given how to make one of a kind, before each branch and at the end."""
    for block in find(cfg.model, Block):
        block.attention_norm = norm(fdl.ArgFactory)
        block.mlp_norm = norm(fdl.ArgFactory)
    for model in find(cfg, Transformer):
        model.norm = norm(fdl.Config)
