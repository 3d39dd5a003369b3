"""Which parts of a graph are objects that several places share."""

import fiddle as fdl

from fidgpt.graph.structure.walk import Node


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
