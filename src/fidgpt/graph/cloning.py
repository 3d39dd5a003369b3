"""Copies of graphs and of parts: what was one node stays one node."""

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph.fiddle import copy_part, raw_arguments
from fidgpt.graph.hints import is_quantity
from fidgpt.graph.walk import IS_NODE, IS_PART, LEAVES, Node, nodes

B = TypeVar("B", bound=fdl.Buildable)
_MOST_COPIES = 100_000


@gc_paused()
def clone(root: Any) -> Any:
    """A copy of a whole graph: what was one part stays one part; leaves are not copied.

    A list or dict is a value: where several places hold one, each of them gets its own.
    """
    return copies_of(nodes(root))[id(root)]


def clone_part(part: B) -> B:
    """A copy of one part that holds the same parts inside.

    Of a factory, what it creates at every call (`ArgFactory`, `Partial`) is copied, and a
    `Config`, which is built once for all calls, is held by both: a RoPE, or a table. A deferred
    computation of a number is copied too, because it follows the part that asks for it.
    """
    found = nodes(part)
    kept = [one.value for one in found[1:] if isinstance(one.value, fdl.Config)]
    return copies_of(found, kept=[one for one in kept if not is_quantity(one)])[id(part)]


def copies_of(found: Iterable[Node], *, kept: Iterable[Any] = ()) -> dict[int, Any]:
    """A copy of each of the nodes of a graph, parents first, by the identity of the node.

    What is `kept` is in the copies itself. A root that is no node of a graph is its own copy.
    """
    copies = _Copies({id(value): value for value in kept})
    for node in reversed([*found]):  # children first, so that depth is no limit
        if id(node.value) not in copies:
            copies[id(node.value)] = _with_children(node.value, copies)
    return copies


class _Copies(dict[int, Any]):
    """Copies by identity; each place that holds a list or dict gets a copy of its own."""

    def __init__(self, copies: dict[int, Any]) -> None:
        super().__init__(copies)
        self._used: set[int] = set()
        self._num_more = _MOST_COPIES  # of a list of one list twice, of one list twice, ...

    def take(self, value: Any) -> Any:
        """Return the copy of a value for one more place; the value itself where it has none."""
        me = id(value)
        if IS_PART[type(value)] or me not in self:
            return self.get(me, value)
        if me in self._used and self._num_more:
            self._num_more -= 1
            return _with_children(value, self)
        self._used.add(me)
        return self[me]


def _with_children(value: Any, copies: _Copies) -> Any:
    kind, take = type(value), copies.take
    if IS_PART[kind]:
        arguments = raw_arguments(value).copy()
        if not LEAVES.issuperset(map(type, arguments.values())):
            arguments = {
                key: one if type(one) in LEAVES else take(one) for key, one in arguments.items()
            }
        return copy_part(value, arguments)
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
