"""What a block is made of, beside attention, and how blocks repeat over the depth."""

from collections.abc import Callable

import fiddle as fdl
from torch import nn

from fidgpt.fiddlers.experts import with_mlp
from fidgpt.graph import clone_part, find, swap_all
from fidgpt.graph.fiddle import parameter_names
from fidgpt.model import (
    GELU,
    Block,
    GeGLU,
    OffsetRMSNorm,
    ParallelBlock,
    PostNormBlock,
    RMSNorm,
    SandwichBlock,
    Shared,
    SquaredReLU,
    SwiGLU,
    Transformer,
    WeightlessRMSNorm,
)
from fidgpt.tags import HiddenDim
from fidgpt.train import Trainer

_NORMS = {"attention_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm"}


def use_swiglu(cfg: fdl.Config[Trainer]) -> None:
    """MLPs are gated by a SiLU."""
    for block in find(cfg.model, Block):
        block.mlp = with_mlp(block.mlp, SwiGLU)


def use_gelu(cfg: fdl.Config[Trainer]) -> None:
    """MLPs are plain, with GPT-2's GELU."""
    for block in find(cfg.model, Block):
        block.mlp = with_mlp(block.mlp, GELU)


def use_geglu(cfg: fdl.Config[Trainer]) -> None:
    """MLPs are gated by a GELU."""
    for block in find(cfg.model, Block):
        block.mlp = with_mlp(block.mlp, GeGLU)


def use_squared_relu(cfg: fdl.Config[Trainer]) -> None:
    """MLPs are plain, with the square of a ReLU."""
    for block in find(cfg.model, Block):
        block.mlp = with_mlp(block.mlp, SquaredReLU)


def use_rms_norm(cfg: fdl.Config[Trainer], eps: float = 1e-5) -> None:
    """Every norm divides by the root mean square alone."""
    _use_norm(cfg, lambda kind: kind(RMSNorm, hidden_dim=HiddenDim.new(), eps=eps))


def use_layer_norm(cfg: fdl.Config[Trainer], eps: float = 1e-5) -> None:
    """Every norm takes off the mean too, and has a bias."""
    _use_norm(cfg, lambda kind: kind(nn.LayerNorm, normalized_shape=HiddenDim.new(), eps=eps))


def use_offset_norm(cfg: fdl.Config[Trainer], eps: float = 1e-6) -> None:
    """Every norm divides by the root mean square, and its weights count from one (Gemma)."""
    _use_norm(cfg, lambda kind: kind(OffsetRMSNorm, hidden_dim=HiddenDim.new(), eps=eps))


def use_weightless_norm(cfg: fdl.Config[Trainer], eps: float = 1e-5) -> None:
    """Every norm divides by the root mean square, and learns nothing."""
    _use_norm(cfg, lambda kind: kind(WeightlessRMSNorm, hidden_dim=HiddenDim.new(), eps=eps))


def use_pre_norm(cfg: fdl.Config[Trainer]) -> None:
    """Each branch reads a normalised stream (GPT-2)."""
    swap_all(cfg.model, Block, by=Block)


def use_post_norm(cfg: fdl.Config[Trainer]) -> None:
    """What each branch gives is normalised, and not what it reads (OLMo 2)."""
    swap_all(cfg.model, Block, by=PostNormBlock)


def use_parallel_block(cfg: fdl.Config[Trainer]) -> None:
    """Attention and MLP read the same stream (GPT-J, PaLM)."""
    swap_all(cfg.model, Block, by=ParallelBlock)


def use_sandwich_norm(cfg: fdl.Config[Trainer]) -> None:
    """Each branch reads a normalised stream, and what it gives is normalised too (Gemma 2)."""
    for block in swap_all(cfg.model, Block, by=SandwichBlock):
        block.attention_out_norm = clone_part(block.attention_norm)
        block.mlp_out_norm = clone_part(block.mlp_norm)


def share_blocks(cfg: fdl.Config[Trainer]) -> None:
    """All layers of a kind are one block with one set of weights (ALBERT, arXiv:1909.11942)."""
    for model in find(cfg, Transformer):
        model.blocks = [
            block if fdl.get_callable(block) is Shared else fdl.Config(Shared, block=block)
            for block in model.blocks
        ]


def _use_norm(
    cfg: fdl.Config[Trainer], norm: Callable[[type[fdl.Buildable]], fdl.Buildable]
) -> None:
    """Puts a norm, given how to make one of a kind, before each branch and at the end."""
    for block in find(cfg.model, Block):
        for key in _NORMS.intersection(parameter_names(block)):
            setattr(block, key, norm(fdl.ArgFactory))
    for model in find(cfg, Transformer):
        model.norm = norm(fdl.Config)
