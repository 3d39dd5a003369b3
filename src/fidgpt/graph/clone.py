"""Copies of graphs and of parts: what was one node stays one node."""

import copy
from collections import defaultdict
from collections.abc import Collection
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.graph.arguments import Key
from fidgpt.graph.quantities import is_quantity
from fidgpt.graph.walk import is_node, nodes

B = TypeVar("B", bound=fdl.Buildable)


def clone(root: Any) -> Any:
    """A copy of a whole graph: what was one node stays one node; plain values are not copied."""
    return _copy(root, kept=())


def clone_part(part: B) -> B:
    """A copy of one part that holds the same parts inside.

    Of a factory, what it makes anew at every call (`ArgFactory`, `Partial`) is copied, and a
    `Config`, which is built once for all calls, is held by both: a RoPE, or a table. A deferred
    computation of a number is copied too, because it follows the part that asks for it.
    """
    return _copy(part, kept=[node.value for node in nodes(part)[1:] if _is_built_once(node.value)])


def copy_part(part: B, arguments: dict[Key, Any]) -> B:
    """A part that calls the same with other arguments; tags and history are copied with it.

    Unlike `copy.copy`, which looks at the signature anew, it costs next to nothing.
    """
    new = object.__new__(type(part))
    tags, history = part.__argument_tags__, part.__argument_history__
    vars(new).update(  # past Fiddle's own __setattr__, as its `__deepcopy__` does
        part.__dict__,
        __arguments__=arguments,
        __argument_tags__=defaultdict(set, {key: set(own) for key, own in tags.items()}),
        __argument_history__=type(history)({key: [*one] for key, one in history.items()}),
    )
    return new


def _copy(root: Any, *, kept: Collection[Any]) -> Any:
    """Children before parents, so that depth is no limit, as it is for `copy.deepcopy`."""
    copies = {id(value): value for value in kept}
    for node in reversed(nodes(root)):
        if id(node.value) not in copies:
            copies[id(node.value)] = _with_children(node.value, copies)
    return copies[id(root)]


def _with_children(value: Any, copies: dict[int, Any]) -> Any:
    def new(child: Any) -> Any:
        return copies[id(child)] if is_node(child) else child

    if not is_node(value):
        return value
    if isinstance(value, tuple):
        items = [new(child) for child in value]
        return getattr(type(value), "_make", type(value))(items)  # named tuples have a _make
    if isinstance(value, fdl.Buildable):
        return copy_part(value, {key: new(item) for key, item in value.__arguments__.items()})
    shell = copy.copy(value)
    if isinstance(value, dict):
        shell.update((key, new(item)) for key, item in value.items())
    else:
        shell[:] = [new(child) for child in value]
    return shell


def _is_built_once(value: Any) -> bool:
    return isinstance(value, fdl.Config) and not is_quantity(value)
