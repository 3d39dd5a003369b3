"""Parts that stand around another one, and come and go without making it another run."""

from collections import Counter
from typing import Any

import fiddle as fdl

from fidgpt.graph.selecting.paths import find_place
from fidgpt.graph.structure.arguments import given
from fidgpt.graph.structure.clone import clone
from fidgpt.graph.structure.walk import Node, nodes, parts

_WORD = "MAY_STAND_AROUND"  # of a constructor: the argument that it stands around, and how


def without_those_around(root: Any) -> Any:
    """A copy of a graph in which each place holds what a part there stands around."""
    copy = clone(root)
    around = [node for node in nodes(copy) if _said(node.value)]
    outermost = [
        (path, node)
        for node in around
        for path, (parent, _) in zip(node.paths, node.parents, strict=True)
        if not _said(parent.value)
    ]
    for path, node in outermost:
        find_place(copy, path).put(_inside(node))
    return copy


def those_around(root: Any) -> Counter[tuple[Any, str]]:
    """How many parts of each kind stand around others, with the word of how they may come."""
    return Counter(
        (fdl.get_callable(node.value), permission)
        for node in parts(root)
        for permission in _said(node.value).values()
    )


def _inside(node: Node) -> Any:
    value = node.value
    while said := _said(value):
        value = given(value)[next(iter(said))]
    return value


def _said(value: Any) -> dict[str, str]:
    """The arguments that a part stands around, each with how it may come or go."""
    if not isinstance(value, fdl.Buildable):
        return {}
    said = getattr(fdl.get_callable(value), _WORD, {})
    return {name: how for name, how in said.items() if name in given(value)}
