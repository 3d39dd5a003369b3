"""Blocks of a model that no layer is made of, because the pattern is longer than the depth."""

from typing import Any

import fiddle as fdl

from fidgpt.graph import bind, parts
from fidgpt.graph.structure.walk import join
from fidgpt.graph.typed.formula import is_formula
from fidgpt.model import Transformer


def spare_blocks(root: Any) -> list[str]:
    """A sentence for each model with more blocks than layers, such as one unrolled too early.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    models = [node for node in parts(bind(root)) if is_model(node.value)]
    return [line for node in models if (line := _spare(node.path, node.value))]


def is_model(part: fdl.Buildable) -> bool:
    """Whether a part makes a model of blocks."""
    called = fdl.get_callable(part)
    return isinstance(called, type) and issubclass(called, Transformer)


def _spare(path: str, model: fdl.Buildable) -> str:
    """What to say of one model; "" where each of its blocks is in use."""
    depth, blocks = model.num_layers, model.blocks
    if is_formula(depth):
        depth = fdl.build(depth)
    if not isinstance(depth, int) or not isinstance(blocks, list | tuple) or len(blocks) <= depth:
        return ""
    name, last = join(path, ".blocks"), len(blocks) - 1
    spare = f"{name}[{depth}]" if depth == last else f"{name}[{depth}] to [{last}]"
    return (
        f"{spare} {'makes' if depth == last else 'make'} no layer: {name} has {len(blocks)} "
        f"entries, and {join(path, '.num_layers')} is {depth}. Say the depth before fiddler:unroll."
    )
