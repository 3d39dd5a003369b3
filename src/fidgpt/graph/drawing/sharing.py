"""Which parts of a graph are objects that several places share."""

from typing import Any

import fiddle as fdl

from fidgpt.graph.annotations import hints_of
from fidgpt.graph.walk import Node

_NUMBERS = (int, float, bool, str)


def is_quantity(part: Any) -> bool:
    """Whether a part computes a number or a text, of which a copy is as good."""
    if not isinstance(part, fdl.Config):
        return False
    return hints_of(fdl.get_callable(part)).get("return") in _NUMBERS


def is_shared_object(node: Node) -> bool:
    """Whether several places hold the one object that a part builds, or all calls of a factory do.

    What an `ArgFactory` makes is made anew for each, and no object is shared.
    """
    if not isinstance(node.value, fdl.Config | fdl.Partial):
        return False
    holder = node.parents[0][0] if node.parents else None
    while holder is not None and not isinstance(holder.value, fdl.Buildable):
        holder = holder.parents[0][0] if holder.parents else None
    in_factory = holder is not None and isinstance(holder.value, fdl.Partial | fdl.ArgFactory)
    return len(node.parents) > 1 or (in_factory and isinstance(node.value, fdl.Config))
