"""Mixers with a state of fixed size in most layers: hybrids of attention and recurrence."""

import re
from typing import Any

import fiddle as fdl

from fidgpt.fiddlers.patterns import repeated
from fidgpt.graph import ConfigError, clone_part, find, parts, swapped
from fidgpt.graph.fiddle import parameter_names, raw_arguments
from fidgpt.graph.formulas import is_formula
from fidgpt.model import (
    Block,
    GatedDeltaNet,
    KimiDeltaNet,
    LightningAttention,
    Mamba2,
    ShortConvolution,
    Transformer,
)
from fidgpt.train import Trainer

__all__ = [
    "use_gated_delta",
    "use_kimi_delta",
    "use_lightning_attention",
    "use_mamba",
    "use_short_convolution",
]

RECURRENT = (GatedDeltaNet, KimiDeltaNet, LightningAttention, Mamba2, ShortConvolution)
_HEAD_DIM = re.compile(r"\{model\.blocks\[\d+\]\.attention\.head_dim\}")
_KEPT = {"hidden_dim", "head_dim", "num_heads", "linear", "init", "out_init"}


def use_gated_delta(
    cfg: fdl.Config[Trainer],
    every: int = 4,
    num_key_heads: int | None = None,
    value_head_dim: int | None = None,
) -> None:
    """Use gated delta nets, with attention as it was in each `every`-th layer (Qwen3-Next).

    Args:
      cfg: the graph to change.
      every: distance of the layers that keep their mixer; 0 if none does.
      num_key_heads: query and key heads per layer; defaults to the number of heads.
      value_head_dim: dimensions of a value; defaults to the dimensions of a head.
    """
    sizes = {"num_key_heads": num_key_heads, "value_head_dim": value_head_dim}
    _mix_by(cfg, GatedDeltaNet, every, **sizes)


def use_kimi_delta(cfg: fdl.Config[Trainer], every: int = 4) -> None:
    """Use delta nets with decays per channel, and attention in each `every`-th layer (Kimi).

    Args:
      cfg: the graph to change.
      every: distance of the layers that keep their mixer; 0 if none does.
    """
    _mix_by(cfg, KimiDeltaNet, every)


def use_mamba(
    cfg: fdl.Config[Trainer], every: int = 4, state_dim: int = 128, num_groups: int = 1
) -> None:
    """Use Mamba 2, with attention as it was in each `every`-th layer (Granite 4, Bamba).

    Args:
      cfg: the graph to change.
      every: distance of the layers that keep their mixer; 0 if none does.
      state_dim: dimensions of queries and keys.
      num_groups: query and key heads per layer, which consecutive heads share.
    """
    _mix_by(cfg, Mamba2, every, state_dim=state_dim, num_groups=num_groups)


def use_lightning_attention(cfg: fdl.Config[Trainer], every: int = 4) -> None:
    """Use lightning attention, with attention in each `every`-th layer (8 in MiniMax-01).

    Args:
      cfg: the graph to change.
      every: distance of the layers that keep their mixer; 0 if none does.
    """
    _mix_by(cfg, LightningAttention, every)


def use_short_convolution(cfg: fdl.Config[Trainer], every: int = 3, filter_size: int = 3) -> None:
    """Use short convolutions, with attention as it was in each `every`-th layer (LFM2).

    Args:
      cfg: the graph to change.
      every: distance of the layers that keep their mixer; 0 if none does.
      filter_size: length of the convolutions in tokens.
    """
    _mix_by(cfg, ShortConvolution, every, filter_size=filter_size)


def _mix_by(cfg: fdl.Config[Trainer], kind: Any, every: int, **sizes: Any) -> None:
    """Replace the mixers of all layers but each `every`-th one."""
    if every < 0:
        raise ConfigError(f"{every=} must be 1 or more, or 0 for all layers.")
    for model in find(cfg, Transformer):
        model.blocks = repeated(model.blocks, max(every, 1), num_layers=model.num_layers)
        numbered = [*enumerate(model.first_blocks), *enumerate(model.blocks)]
        mixers = [block.attention for _, block in numbered]
        with_heads = [one for one in mixers if "head_dim" in parameter_names(one)]
        for index, block in numbered:
            if every == 0 or (index + 1) % every:
                if with_heads and block.attention not in with_heads:  # as a short convolution
                    block.attention = clone_part(with_heads[0])
                put_mixer(block, kind, **sizes)
        _name_other_heads(cfg, model)


def _name_other_heads(cfg: fdl.Config[Trainer], model: fdl.Buildable[Transformer]) -> None:
    """Let formulas name the size of heads in a layer that has heads, if any has."""
    sized = ("head_dim" in parameter_names(block.attention) for block in model.blocks)
    index = next((i for i, has_heads in enumerate(sized) if has_heads), None)
    for part in (node.value for node in parts(cfg) if is_formula(node.value)):
        if index is not None:
            part.text = _HEAD_DIM.sub(f"{{model.blocks[{index}].attention.head_dim}}", part.text)


def put_mixer(block: fdl.Buildable[Block], kind: Any, **arguments: Any) -> None:
    """Let a block mix tokens by another component, of the heads that its mixer has.

    Args:
      block: the block.
      kind: the component.
      arguments: of the component; None for its default.
    """
    mixer = swapped(block.attention, kind)
    for name in raw_arguments(mixer).keys() - _KEPT:
        delattr(mixer, str(name))
    for name, value in arguments.items():
        if value is not None:
            setattr(mixer, name, value)
    block.attention = mixer
