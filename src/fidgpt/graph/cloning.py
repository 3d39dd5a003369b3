"""Copies of graphs and of parts: what was one node stays one node."""

import copy
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph.fiddle import copy_part, raw_arguments
from fidgpt.graph.hints import is_quantity
from fidgpt.graph.walk import IS_NODE, IS_PART, LEAVES, Node, nodes

B = TypeVar("B", bound=fdl.Buildable)
_MOST_COPIES = 1_000_000


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
    kept = [node.value for node in found[1:] if _is_built_once(node.value)]
    return copies_of(found, kept=kept)[id(part)]


def own_value(value: Any) -> Any:
    """A list, tuple or dict of one's own that holds the same parts; any other value itself."""
    if IS_PART[type(value)] or not IS_NODE[type(value)]:
        return value
    found = nodes(value)
    return copies_of(found, kept=[one.value for one in found if IS_PART[type(one.value)]])[
        id(value)
    ]


def copies_of(found: Iterable[Node], *, kept: Collection[Any] = ()) -> dict[int, Any]:
    """A copy of each of the nodes of a graph, parents first, by the identity of the node.

    What is `kept` is in the copies itself. A root that is no node of a graph is its own copy.
    """
    found = list(found)
    copies = _Handed({id(value): value for value in kept})
    if any(len(node.parents) > 1 and _is_open(node.value) for node in found):
        copies.counts = _counts(found)
    for node in reversed(found):  # children first, so that depth is no limit
        me = id(node.value)
        if me not in copies:
            copies[me] = _with_children(node.value, copies)
            if me in copies.counts:
                more = range(copies.counts[me] - 1)
                copies.more[me] = [_with_children(node.value, copies) for _ in more]
    return copies


class _Handed(dict[int, Any]):
    """Copies by identity; those of a list that several places hold are handed out one to each.

    Attributes:
      counts: how many copies of a list are needed, where it is not one.
      more: those that are left to be handed out, beside the one that stays.
    """

    def __init__(self, copies: dict[int, Any]) -> None:
        super().__init__(copies)
        self.counts: dict[int, int] = {}
        self.more: dict[int, list[Any]] = {}

    def hand(self, value: Any) -> Any:
        """The copy of a value that is for one more place; the value itself where it has none."""
        more = self.more.get(id(value))
        return more.pop() if more else self.get(id(value), value)


def _is_open(value: Any) -> bool:
    """Whether a value is no part, and what it holds could be another through one of its places."""
    kind = type(value)
    if IS_PART[kind] or not IS_NODE[kind]:
        return False
    return not isinstance(value, tuple) or any(IS_NODE[type(one)] for one in value)


def _counts(found: list[Node]) -> dict[int, int]:
    """How many copies there are to be of each list or dict, where it is not one.

    Empty where that would be too many, as of a list of one list twice, of one list twice, ...
    """
    counts: dict[int, int] = {}
    for node in found:
        if _is_open(node.value):
            count = sum(counts.get(id(parent.value), 1) for parent, _ in node.parents)
            if count > 1:
                counts[id(node.value)] = count
    return counts if sum(counts.values()) <= _MOST_COPIES else {}


def _with_children(value: Any, copies: _Handed) -> Any:
    kind, hand = type(value), copies.hand
    if IS_PART[kind]:
        arguments = raw_arguments(value).copy()
        if not LEAVES.issuperset(map(type, arguments.values())):
            arguments = {
                key: one if type(one) in LEAVES else hand(one) for key, one in arguments.items()
            }
        return copy_part(value, arguments)
    if not IS_NODE[kind]:
        return value
    if isinstance(value, tuple):
        items = [hand(child) for child in value]
        return getattr(kind, "_make", kind)(items)  # named tuples have a _make
    shell = copy.copy(value)
    if isinstance(value, dict):
        shell.update((key, hand(item)) for key, item in value.items())
    else:
        shell[:] = [hand(child) for child in value]
    return shell


def _is_built_once(value: Any) -> bool:
    return isinstance(value, fdl.Config) and not is_quantity(value)
