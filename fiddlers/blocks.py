"""Blocks: MLPs, norms and how they are arranged."""

from collections.abc import Callable
from typing import Any

import fiddle as fdl
from torch import nn

from fidgpt.fiddlers.experts import with_mlp
from fidgpt.graph import clone_part, find, swap_all, swapped
from fidgpt.graph.fiddle import parameter_names
from fidgpt.model import (
    GELU,
    MLP,
    XIELU,
    Block,
    GeGLU,
    OffsetRMSNorm,
    ParallelBlock,
    PlainExperts,
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

__all__ = [
    "share_blocks",
    "use_geglu",
    "use_gelu",
    "use_layer_norm",
    "use_offset_norm",
    "use_parallel_block",
    "use_post_norm",
    "use_pre_norm",
    "use_rms_norm",
    "use_sandwich_norm",
    "use_squared_relu",
    "use_swiglu",
    "use_weightless_norm",
    "use_xielu",
]

_NORMS = {"attention_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm"}


def use_swiglu(cfg: fdl.Config[Trainer]) -> None:
    """Use MLPs gated by SiLU."""
    for block in find(cfg.model, Block):
        block.mlp = with_mlp(block.mlp, SwiGLU)


def use_gelu(cfg: fdl.Config[Trainer]) -> None:
    """Use plain MLPs with GPT-2's GELU."""
    for block in find(cfg.model, Block):
        block.mlp = with_mlp(block.mlp, GELU)


def use_geglu(cfg: fdl.Config[Trainer]) -> None:
    """Use MLPs gated by GELU."""
    for block in find(cfg.model, Block):
        block.mlp = with_mlp(block.mlp, GeGLU)


def use_squared_relu(cfg: fdl.Config[Trainer]) -> None:
    """Use plain MLPs with a squared ReLU."""
    for block in find(cfg.model, Block):
        block.mlp = with_mlp(block.mlp, SquaredReLU)


def use_xielu(cfg: fdl.Config[Trainer]) -> None:
    """Use plain MLPs of xIELU, with learned curvatures (Apertus)."""
    for block in find(cfg.model, Block):
        mlp = with_mlp(block.mlp, GELU)
        block.mlp = swapped(mlp, MLP) if fdl.get_callable(mlp) is GELU else mlp
    for part in find(cfg.model, MLP, PlainExperts):
        part.activation = fdl.ArgFactory(XIELU)


def use_rms_norm(cfg: fdl.Config[Trainer], eps: float = 1e-5) -> None:
    """Use RMSNorm everywhere."""
    _use_norm(cfg, lambda kind: kind(RMSNorm, hidden_dim=HiddenDim.new(), eps=eps))


def use_layer_norm(cfg: fdl.Config[Trainer], eps: float = 1e-5, bias: bool = True) -> None:
    """Use LayerNorm everywhere, with or without biases."""
    more = {} if bias else {"bias": False}
    _use_norm(
        cfg, lambda kind: kind(nn.LayerNorm, normalized_shape=HiddenDim.new(), eps=eps, **more)
    )


def use_offset_norm(cfg: fdl.Config[Trainer], eps: float = 1e-6) -> None:
    """Use RMSNorm with weights that are offsets from one, everywhere (Gemma)."""
    _use_norm(cfg, lambda kind: kind(OffsetRMSNorm, hidden_dim=HiddenDim.new(), eps=eps))


def use_weightless_norm(cfg: fdl.Config[Trainer], eps: float | None = 1e-5) -> None:
    """Use RMSNorm without weights everywhere."""
    _use_norm(cfg, lambda kind: kind(WeightlessRMSNorm, hidden_dim=HiddenDim.new(), eps=eps))


def use_pre_norm(cfg: fdl.Config[Trainer]) -> None:
    """Normalize the input of each branch (GPT-2)."""
    _rearrange(cfg, Block)


def use_post_norm(cfg: fdl.Config[Trainer]) -> None:
    """Normalize the output of each branch instead of its input (OLMo 2)."""
    _rearrange(cfg, PostNormBlock)


def use_parallel_block(cfg: fdl.Config[Trainer]) -> None:
    """Compute attention and MLP in parallel on one input (GPT-J, PaLM)."""
    swap_all(cfg.model, Block, by=ParallelBlock)


def use_sandwich_norm(cfg: fdl.Config[Trainer]) -> None:
    """Normalize the input and the output of each branch (Gemma 2)."""
    for block in _rearrange(cfg, SandwichBlock):
        block.attention_out_norm = clone_part(block.attention_norm)
        block.mlp_out_norm = clone_part(block.mlp_norm)


def share_blocks(cfg: fdl.Config[Trainer]) -> None:
    """Share one block and its weights among all layers of a kind (ALBERT, arXiv:1909.11942)."""
    for model in find(cfg, Transformer):
        model.sharing = fdl.Partial(Shared)


def _rearrange(cfg: fdl.Config[Trainer], kind: type[Block]) -> list[Any]:
    """Turn all blocks into blocks of another kind, with a norm for each branch."""
    blocks: list[Any] = swap_all(cfg.model, Block, by=kind)
    for block in blocks:
        if block.mlp_norm is None:
            block.mlp_norm = clone_part(block.attention_norm)
    return blocks


def _use_norm(
    cfg: fdl.Config[Trainer], norm: Callable[[type[fdl.Buildable]], fdl.Buildable]
) -> None:
    """Replace the norms of all blocks and the final norm by `norm(kind of node)`."""
    for block in find(cfg.model, Block):
        for key in _NORMS.intersection(parameter_names(block)):
            if getattr(block, key, None) is not None:  # a parallel block may have one norm
                setattr(block, key, norm(fdl.ArgFactory))
    for model in find(cfg, Transformer):
        model.norm = norm(fdl.Config)
