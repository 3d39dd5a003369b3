"""Which nodes of graphs are alike: a number for each, the same for all that are alike."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph.difference.bound import Bound
from fidgpt.graph.storage.merkle import hashable, leaf_key
from fidgpt.graph.structure.walk import children

Numbers = Mapping[int, int]  # by the identity of a node's value
Label = Callable[[Bound, Any, Numbers], Hashable]


def number(bound: Bound, known: dict[Hashable, int], label: Label) -> dict[int, int]:
    """A number for every node: two nodes have the same one if their labels are equal.

    Labels are made children first, from the numbers of the children, and compared exactly, so
    that all of it is linear in the graph. `known` makes the numbers of several graphs comparable.
    """
    numbers: dict[int, int] = {}
    for node in reversed(bound.nodes):
        word = label(bound, node.value, numbers)
        numbers[id(node.value)] = known.setdefault(word, len(known))
    return numbers


class Numbering:
    """Numbers for nodes of several graphs by one label, made when they are asked for.

    The label goes by what nodes hold and hear: of many of one kind only the first is looked into.
    """

    def __init__(self, label: Label) -> None:
        self._label = label
        self._known: dict[Hashable, int] = {}
        self._numbers: dict[int, int] = {}
        self._of_kind: dict[Hashable, int] = {}

    def of(self, bound: Bound, value: Any) -> int:
        """The number of a node, after those of all that it holds."""
        numbers, of_kind = self._numbers, self._of_kind
        stack = [] if id(value) in numbers else [value]
        while stack:
            one = stack[-1]
            kind = bound.kind(one)
            if kind not in of_kind:
                missing = [held for held in bound.held(one) if id(held) not in numbers]
                if missing:
                    stack += missing
                    continue
                label = self._label(bound, one, numbers)
                of_kind[kind] = self._known.setdefault(label, len(self._known))
            numbers[id(one)] = of_kind[kind]
            stack.pop()
        return numbers[id(value)]


def content(bound: Bound, value: Any, numbers: Numbers) -> Hashable:
    """Alike are parts that build equal things: calls, values and tags, whoever said them."""

    def key_of(held: Any) -> Hashable:
        return ("node", numbers[id(held)]) if bound.has_parts(held) else leaf_key(held)

    if not isinstance(value, fdl.Buildable):
        items = [(step, key_of(child)) for step, child in children(value)]
        return call_of(value), frozenset(items) if isinstance(value, dict) else tuple(items)
    return call_of(value), tuple(
        (key, tags_of(value, key), key_of(argument.value))
        for key, argument in bound.arguments(value).items()
    )


def shape(bound: Bound, value: Any, numbers: Numbers) -> Hashable:
    """Alike are parts that call the same, and hold parts that do so."""
    held = [child for child in bound.held(value) if bound.has_parts(child)]
    return call_of(value), tuple(numbers[id(child)] for child in held)


def call_of(value: Any) -> Hashable:
    """What a part calls and in which way; of a container, its type."""
    return (type(value), function_of(value)) if isinstance(value, fdl.Buildable) else type(value)


def function_of(part: fdl.Buildable) -> Hashable:
    """What a part calls, for comparing."""
    return hashable(fdl.get_callable(part))


def tags_of(part: fdl.Buildable, key: str | int) -> tuple[str, ...]:
    """The names of a parameter's tags, in a fixed order."""
    own = part.__argument_tags__.get(key)
    return tuple(sorted(tag.__name__ for tag in own)) if own else ()
