"""What the computed numbers and texts of a graph come to."""

from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.binding.bind import bind
from fidgpt.graph.selecting.paths import find_place
from fidgpt.graph.structure.quantities import is_quantity
from fidgpt.graph.structure.walk import Node, children, is_node, nodes
from fidgpt.graph.views.outline import leaf_text


def results(root: Any, found: list[Node]) -> dict[int, str]:
    """The result of each quantity among the nodes of a graph, by its identity.

    A quantity that is computed from a part that is none itself is left out, as building that may
    take long. Where one fails, there are none: that is told elsewhere.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    asked = [node for node in found if node.parents and is_quantity(node.value)]
    if not asked:
        return {}
    bound = bind(root)
    quick = _quick(bound)
    copies = {id(node.value): find_place(bound, node.path).value for node in asked}
    computed = {number: copy for number, copy in copies.items() if id(copy) in quick}
    try:
        built = fdl.build(list(computed.values()))  # together, each once
    except Exception:  # whatever the functions do with wrong arguments
        return {}
    return dict(zip(computed, map(leaf_text, built), strict=True))


def _quick(root: Any) -> set[int]:
    """The nodes that hold nothing but quantities, by identity."""
    quick: set[int] = set()
    for node in reversed(nodes(root)):
        is_part = isinstance(node.value, fdl.Buildable)
        if is_part and not (is_quantity(node.value) or isinstance(node.value, TaggedValueCls)):
            continue
        if all(id(child) in quick for _, child in children(node.value) if is_node(child)):
            quick.add(id(node.value))
    return quick
