"""A layer that has no entry of its own in the pattern of blocks: how to give it one."""

from typing import Any

import fiddle as fdl

from fidgpt.cli.directives.spare import is_model
from fidgpt.graph import parts
from fidgpt.graph.structure.walk import join


def remedy(root: Any, place: str) -> str:
    """What to add where `place` lacks an entry: something if it holds the blocks of a model."""
    models = [node for node in parts(root) if is_model(node.value)]
    meant = (node.value for node in models if join(node.path, ".blocks") == place)
    return next(map(_told, meant), "")


def _told(model: fdl.Buildable) -> str:
    blocks, depth = model.blocks, model.num_layers
    if not (isinstance(blocks, list | tuple) and isinstance(depth, int) and len(blocks) < depth):
        return ""
    stands = "It stands" if len(blocks) == 1 else "They stand in turn"
    return (
        f"\n{stands} for all {depth} layers: say fiddler:unroll before this, and each layer has an "
        "entry of its own."
    )
