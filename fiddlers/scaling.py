"""Scaling of hyperparameters with the size of a model."""

from collections.abc import Callable
from typing import Any

import fiddle as fdl

from fidgpt.fiddlers.attention import ATTENTIONS
from fidgpt.fiddlers.data import count_growth
from fidgpt.fiddlers.optimizers import set_groups
from fidgpt.fiddlers.recurrent import RECURRENT
from fidgpt.graph import ConfigError, find, holds, parts
from fidgpt.graph.fiddle import parameter_names, raw_arguments
from fidgpt.graph.formulas import make_formula
from fidgpt.model import (
    DepthScaled,
    MuP,
    Transformer,
    Unembedding,
    attention_scale,
    heads_that_fit,
    output_scale,
)
from fidgpt.optim import (
    mup_groups,
    optimal_batch_size,
    optimal_learning_rate,
    optimal_tokens,
    steps_for_tokens,
)
from fidgpt.ranges import require_positive, require_size
from fidgpt.tags import BatchSize, HeadDim, HiddenDim, InitStd, SeqLen
from fidgpt.train import Trainer

__all__ = ["make_depth", "scale_depth", "use_mup"]


def scale_depth(cfg: fdl.Config[Trainer], factor: float = 2.0) -> None:
    """Multiply the number of layers, keeping their pattern."""
    require_positive(factor=factor)
    for model in find(cfg, Transformer):
        if not isinstance(model.num_layers, int):
            raise ConfigError(
                "scale_depth needs model.num_layers to be a number, and it is computed: "
                "set:model.num_layers*=2 doubles that, too."
            )
        model.num_layers = max(1, round(model.num_layers * factor))


def make_depth(cfg: fdl.Config[Trainer], depth: int = 12, multiple_of: int = 8) -> None:
    """Derive width, heads, tokens, batch size and learning rate from the depth.

    All of them follow `model.num_layers` and each other when the graph is bound, whatever is
    changed later. The width is 64 times the depth, with heads of 64, and the run has 20 tokens for
    each parameter of the layers (Hoffmann et al., 2022, arXiv:2203.15556). Its floating-point
    operations determine the tokens of a batch and the learning rate (DeepSeek LLM, 2024,
    arXiv:2401.02954, section 3.1).

    Args:
      cfg: the graph to change.
      depth: number of layers.
      multiple_of: batches are a multiple of this and of a power of two, so that they can be split
        evenly over processes; set the number of processes if it does not divide 8.
    """
    require_size(depth=depth)
    cfg.model.num_layers = depth
    cfg.model.hidden_dim = make_formula(cfg, "64 * {model.num_layers}")
    for mixer in find(cfg.model, *ATTENTIONS, *RECURRENT):
        if "head_dim" in parameter_names(mixer):
            mixer.head_dim = HeadDim.new(64)
    for node in parts(cfg.model):
        _let_follow(node.value, depth)
    cfg.num_steps = fdl.Config(
        steps_for_tokens,
        tokens=_of_layers(cfg, optimal_tokens),
        batch_size=BatchSize.new(),
        seq_len=SeqLen.new(),
    )
    count_growth(cfg)
    batch_size = _of_layers(cfg, optimal_batch_size)
    batch_size.seq_len, batch_size.multiple_of = SeqLen.new(), multiple_of
    cfg.batch_size = batch_size
    cfg.optimizer.lr = _of_layers(cfg, optimal_learning_rate)


def use_mup(cfg: fdl.Config[Trainer], base_dim: int = 256, base_head_dim: int = 64) -> None:
    """Use maximal update parametrization, so that hyperparameters transfer across widths.

    Initialization and learning rate of hidden matrices, scores and logits are scaled by the width
    (Yang et al., 2022, arXiv:2203.03466). At `base_dim` this only changes the scores of heads whose
    size is not `base_head_dim`. A model with inputs of a low rank, as in latent attention, is
    refused when it is built.
    """
    set_groups(cfg, fdl.Partial(mup_groups, base_dim=base_dim))
    _start_by_width(cfg, base_dim)
    for attention in find(cfg.model, *ATTENTIONS) if holds(cfg.model, *ATTENTIONS) else ():
        attention.scale = fdl.Config(
            attention_scale, head_dim=HeadDim.new(), base_head_dim=base_head_dim
        )
    for unembedding in find(cfg.model, Unembedding):
        unembedding.scale = fdl.Config(output_scale, hidden_dim=HiddenDim.new(), base_dim=base_dim)


def _of_layers(cfg: fdl.Config[Trainer], function: Callable[..., Any]) -> fdl.Config[Any]:
    """Return a node that computes a number from depth and width of the model."""
    node = fdl.Config(function)
    node.num_layers = make_formula(cfg, "{model.num_layers}")
    node.hidden_dim = make_formula(cfg, "{model.hidden_dim}")
    return node


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


def _let_follow(part: fdl.Buildable, num_heads: int) -> None:
    """Unset sizes that were set for another width, so that they follow the width."""
    for name in {"num_heads", "num_kv_heads", "ffn_dim"} & raw_arguments(part).keys():
        size = getattr(part, name)
        if not isinstance(size, int) or (name == "num_kv_heads" and num_heads % size == 0):
            continue
        if name == "num_kv_heads":
            part.num_kv_heads = fdl.Config(
                heads_that_fit, hidden_dim=HiddenDim.new(), head_dim=HeadDim.new()
            )
        else:
            setattr(part, name, None)
