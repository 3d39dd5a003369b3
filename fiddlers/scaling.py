"""Scaling of hyperparameters with the size of a model."""

import math

import fiddle as fdl

from fidgpt.fiddlers.attention import ATTENTIONS
from fidgpt.fiddlers.optimizers import set_groups
from fidgpt.graph import ConfigError, find, parts
from fidgpt.graph.fiddle import parameter_names, raw_arguments
from fidgpt.model import (
    DepthScaled,
    MuP,
    Transformer,
    Unembedding,
    attention_scale,
    heads_that_fit,
    output_scale,
)
from fidgpt.optim import mup_groups
from fidgpt.tags import HeadDim, HiddenDim, InitStd
from fidgpt.train import Trainer


def scale_depth(cfg: fdl.Config[Trainer], factor: float = 2.0) -> None:
    """Multiply the number of layers, keeping their pattern."""
    if not 0 < factor < math.inf:
        raise ConfigError(f"{factor=} must be above 0, and finite.")
    for model in find(cfg, Transformer):
        if not isinstance(model.num_layers, int):
            raise ConfigError("scale_depth needs model.num_layers to be a number.")
        model.num_layers = max(1, round(model.num_layers * factor))


def make_depth(cfg: fdl.Config[Trainer], depth: int = 12) -> None:
    """Set width, heads, tokens, batch size and learning rate from the depth.

    The width is 64 times the depth, with heads of 64, and the run has 20 tokens for each parameter
    of the layers (Hoffmann et al., 2022, arXiv:2203.15556). The floating-point operations C of the
    run determine the tokens of a batch, 0.2920 C^0.3271, and the learning rate, 0.3118 C^-0.1250
    (DeepSeek LLM, 2024, arXiv:2401.02954, section 3.1).
    """
    if depth < 1:
        raise ConfigError(f"{depth=} must be 1 or more.")
    width = 64 * depth
    cfg.model.num_layers, cfg.model.hidden_dim = depth, width
    for attention in find(cfg.model, *ATTENTIONS):
        attention.head_dim = HeadDim.new(64)
    for node in parts(cfg.model):
        _let_follow(node.value)
    parameters = 12 * depth * width**2
    tokens = 20 * parameters
    operations = 6 * parameters * tokens
    seq_len = cfg.seq_len
    cfg.batch_size = max(1, round(0.2920 * operations**0.3271 / seq_len))
    cfg.num_steps = max(1, round(tokens / (cfg.batch_size * seq_len)))
    cfg.optimizer.lr = float(f"{0.3118 * operations**-0.1250:.2g}")


def use_mup(cfg: fdl.Config[Trainer], base_dim: int = 256, base_head_dim: int = 64) -> None:
    """Use maximal update parametrization, so that hyperparameters transfer across widths.

    Initialization and learning rate of hidden matrices, scores and logits are scaled by the width
    (Yang et al., 2022, arXiv:2203.03466). At `base_dim` this only changes the scores of heads whose
    size is not `base_head_dim`.
    """
    set_groups(cfg, fdl.Partial(mup_groups, base_dim=base_dim))
    _start_by_width(cfg, base_dim)
    for attention in find(cfg.model, *ATTENTIONS):
        attention.scale = fdl.Config(
            attention_scale, head_dim=HeadDim.new(), base_head_dim=base_head_dim
        )
    for unembedding in find(cfg.model, Unembedding):
        unembedding.scale = fdl.Config(output_scale, hidden_dim=HiddenDim.new(), base_dim=base_dim)


def _start_by_width(cfg: fdl.Config[Trainer], base_dim: int) -> None:
    """Initialize the matrices of blocks by muP, from their current deviation."""
    std = cfg.model.embedding.weight.init.std
    start = fdl.Config(
        MuP, hidden_dim=HiddenDim.new(), base_dim=base_dim, base_std=InitStd.new(std)
    )
    for node in parts([*cfg.model.first_blocks, *cfg.model.blocks]):
        part = node.value
        names = parameter_names(part)
        if "init" not in names or "hidden_dim" not in names:
            continue  # a DepthScaled, which is handled below, or a table
        part.init = start
        if "out_init" in names and fdl.get_callable(part.out_init or start) is DepthScaled:
            part.out_init.init = start


def _let_follow(part: fdl.Buildable) -> None:
    """Unset sizes that were set for another width, so that they follow the width."""
    for name in {"num_heads", "num_kv_heads", "ffn_dim"} & raw_arguments(part).keys():
        if name == "num_kv_heads" and isinstance(part.num_kv_heads, int):
            part.num_kv_heads = fdl.Config(
                heads_that_fit, hidden_dim=HiddenDim.new(), head_dim=HeadDim.new()
            )
        elif isinstance(getattr(part, name), int):
            setattr(part, name, None)
