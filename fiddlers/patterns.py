"""The pattern of blocks that repeats over the depth."""

import math
from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from fidgpt.graph import ConfigError, clone_part, find
from fidgpt.graph.binding import numbers_in
from fidgpt.model import Transformer
from fidgpt.ranges import require_size
from fidgpt.train import Trainer

__all__ = ["unroll"]


def unroll(cfg: fdl.Config[Trainer], every: int | None = None) -> None:
    """Give every layer a block of its own in the graph, so that it can be changed alone.

    Components that layers share stay shared.

    Args:
      cfg: the graph to change.
      every: length of the pattern instead: after `unroll(every=2)`, `blocks[1]` is every second
        layer at any depth. The length is rounded up to a multiple of the current pattern's.
    """
    require_size(every=every)
    depth_of = numbers_in(cfg)
    for model in find(cfg, Transformer):
        if every is None:
            model.blocks = _every_layer(model, depth_of(model, "num_layers"))
        else:
            model.blocks = repeated(model.blocks, every)


def _every_layer(model: fdl.Buildable[Transformer], num_layers: Any) -> list[fdl.Buildable]:
    """Return a block for each layer, including the first ones."""
    pattern = model.blocks
    if not isinstance(num_layers, int):
        raise ConfigError("unroll needs model.num_layers to be a number.")
    first = list(model.first_blocks)[:num_layers]
    rest = [pattern[i % len(pattern)] for i in range(len(first), num_layers)]
    if first:
        model.first_blocks = ()
    return [clone_part(block) for block in [*first, *rest]]


def repeated(
    blocks: Sequence[fdl.Buildable], every: int, *, num_layers: Any = None
) -> list[fdl.Buildable]:
    """Return the pattern repeated so that each `every`-th block is each `every`-th layer.

    Every entry is a node of its own, which can be changed alone. Components that layers share, such
    as a RoPE, stay shared.

    Args:
      blocks: the pattern.
      every: how often a layer differs.
      num_layers: layers of the model; if the pattern has that many entries, and their number does
        not divide `every`, it was unrolled, and gets no more.
    """
    length = math.lcm(len(blocks), every)
    if length > every and len(blocks) == num_layers:
        length = len(blocks)
    return [clone_part(blocks[i % len(blocks)]) for i in range(length)]
