"""Copies of graphs and of parts: what was one node stays one node."""

import copy
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.graph.arguments import Key
from fidgpt.graph.quantities import is_quantity
from fidgpt.graph.walk import IS_NODE, IS_PART, LEAVES, Node, nodes

B = TypeVar("B", bound=fdl.Buildable)


def clone(root: Any) -> Any:
    """A copy of a whole graph: what was one node stays one node; plain values are not copied."""
    return copies_of(nodes(root))[id(root)]


def clone_part(part: B) -> B:
    """A copy of one part that holds the same parts inside.

    Of a factory, what it makes anew at every call (`ArgFactory`, `Partial`) is copied, and a
    `Config`, which is built once for all calls, is held by both: a RoPE, or a table. A deferred
    computation of a number is copied too, because it follows the part that asks for it.
    """
    found = nodes(part)
    kept = [node.value for node in found[1:] if _is_built_once(node.value)]
    return copies_of(found, kept=kept)[id(part)]


def copy_part(part: B, arguments: dict[Key, Any]) -> B:
    """A part that calls the same with other arguments; tags and history are copied with it.

    Unlike `copy.copy`, which looks at the signature anew, it costs next to nothing.
    """
    new = object.__new__(type(part))
    tags, history = part.__argument_tags__, part.__argument_history__
    own = vars(new)  # past Fiddle's own __setattr__, as its `__deepcopy__` does
    own.update(part.__dict__)
    own["__arguments__"] = arguments
    own["__argument_tags__"] = copied = defaultdict(set)
    for key, carried in tags.items():
        copied[key] = carried.copy()
    own["__argument_history__"] = type(history)(
        zip(history, map(list.copy, history.values()), strict=True)
    )
    return new


def copies_of(found: Iterable[Node], *, kept: Collection[Any] = ()) -> dict[int, Any]:
    """A copy of each of the nodes of a graph, parents first, by the identity of the node.

    What is `kept` is in the copies itself. A root that is no node of a graph is its own copy.
    """
    copies = {id(value): value for value in kept}
    for node in reversed(list(found)):  # children first, so that depth is no limit
        if id(node.value) not in copies:
            copies[id(node.value)] = _with_children(node.value, copies)
    return copies


def _with_children(value: Any, copies: dict[int, Any]) -> Any:
    kind = type(value)
    if IS_PART[kind]:
        arguments = dict(value.__arguments__)
        if not LEAVES.issuperset(map(type, arguments.values())):
            arguments = {key: copies.get(id(one), one) for key, one in arguments.items()}
        return copy_part(value, arguments)
    if not IS_NODE[kind]:
        return value
    if isinstance(value, tuple):
        items = [copies.get(id(child), child) for child in value]
        return getattr(kind, "_make", kind)(items)  # named tuples have a _make
    shell = copy.copy(value)
    if isinstance(value, dict):
        shell.update((key, copies.get(id(item), item)) for key, item in value.items())
    else:
        shell[:] = [copies.get(id(child), child) for child in value]
    return shell


def _is_built_once(value: Any) -> bool:
    return isinstance(value, fdl.Config) and not is_quantity(value)
