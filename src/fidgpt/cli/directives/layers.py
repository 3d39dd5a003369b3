"""A layer that has no entry of its own in the pattern of blocks: how to give it one."""

from typing import Any

import fiddle as fdl

from fidgpt.cli.directives.spare import is_model
from fidgpt.graph import parts
from fidgpt.graph.structure.walk import join


def remedy(root: Any, message: str) -> str:
    """What to add to a mistake that says how few entries the blocks of a model have; or ""."""
    models = [node for node in parts(root) if is_model(node.value)]
    told = (_told(join(node.path, ".blocks"), node.value, message) for node in models)
    return next(filter(None, told), "")


def _told(path: str, model: fdl.Buildable, message: str) -> str:
    blocks, depth = model.blocks, model.num_layers
    is_asked = isinstance(blocks, list | tuple) and f"{path} has {len(blocks)} entr" in message
    if not is_asked or not isinstance(depth, int) or len(blocks) >= depth:
        return ""
    stands = "It stands" if len(blocks) == 1 else "They stand in turn"
    return (
        f"\n{stands} for all {depth} layers: say fiddler:unroll before this, and each layer has an "
        "entry of its own."
    )
