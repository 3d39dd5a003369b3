"""Copies of graphs and of parts: what was one node stays one node."""

import copy
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph import fiddle, hints
from fidgpt.graph.walk import IS_NODE, IS_PART, LEAVES, Node, nodes

B = TypeVar("B", bound=fdl.Buildable)


@gc_paused()
def clone(root: Any) -> Any:
    """A copy of a whole graph: what was one part stays one part; leaves are not copied.

    A list or dict is a value: where several places hold one, each of them gets its own.
    A copy of a bound graph takes changes, but what was inherited is set in it, and does not follow.
    """
    return copies_of(nodes(root))[id(root)]


def clone_part(part: B) -> B:
    """A copy of one part that holds the same parts inside.

    Of a factory, what it creates at every call (`ArgFactory`, `Partial`) is copied, and a
    `Config`, which is built once for all calls, is held by both: a RoPE, or a table. A deferred
    computation of a number is copied too, because it follows the part that asks for it.
    """
    inner = nodes(part)
    kept = [node.value for node in inner[1:] if isinstance(node.value, fdl.Config)]
    return copies_of(inner, kept=[part for part in kept if not hints.is_quantity(part)])[id(part)]


def copies_of(graph_nodes: Iterable[Node], *, kept: Iterable[Any] = ()) -> dict[int, Any]:
    """A copy of each of the nodes of a graph, parents first, by the identity of the node.

    What is `kept` is in the copies itself. A root that is no node of a graph is its own copy.
    """
    copies = {id(value): value for value in kept}
    used: set[int] = set()

    def take(value: Any) -> Any:  # the copy for one more place; a list or dict is copied for each
        me = id(value)
        if IS_PART[type(value)] or me not in copies:
            return copies.get(me, value)
        if me in used:
            return _with_children(value, take)
        used.add(me)
        return copies[me]

    for node in reversed([*graph_nodes]):  # children first, so that depth is no limit
        if id(node.value) not in copies:
            copies[id(node.value)] = _with_children(node.value, take)
    return copies


def _with_children(value: Any, take: Callable[[Any], Any]) -> Any:
    kind = type(value)
    if IS_PART[kind]:
        arguments = dict(fiddle.raw_arguments(value))
        if not LEAVES.issuperset(map(type, arguments.values())):
            arguments = {
                key: arg if type(arg) in LEAVES else take(arg) for key, arg in arguments.items()
            }
        return fiddle.copy_part(value, arguments)
    if not IS_NODE[kind]:
        return value
    if isinstance(value, tuple):
        return getattr(kind, "_make", kind)(map(take, value))  # named tuples have a _make
    shell = copy.copy(value)
    if isinstance(value, dict):
        shell.update((key, take(item)) for key, item in value.items())
    else:
        shell[:] = map(take, value)
    return shell
