"""Which nodes of graphs are alike: a number for each, the same for all that are alike."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph.difference.bound import Argument, Bound
from fidgpt.graph.storage.merkle import hashable, leaf_key
from fidgpt.graph.walk import children

Numbers = Mapping[int, int]  # by the identity of a node's value
Label = Callable[[Bound, Any, Numbers], Hashable]


def number(bound: Bound, known: dict[Hashable, int], label: Label) -> dict[int, int]:
    """A number for every node: two nodes have the same one if their labels are equal.

    Labels are made children first, from the numbers of the children, and compared exactly, so
    that all of it is linear in the graph. `known` makes the numbers of several graphs comparable.
    """
    numbering = Numbering(label, known)
    numbering.of(bound, bound.root)
    return numbering.numbers


class Numbering:
    """Numbers for nodes of several graphs by one label, made when they are asked for.

    Attributes:
      numbers: those made so far, by the identity of the node.
    """

    def __init__(self, label: Label, known: dict[Hashable, int] | None = None) -> None:
        self.numbers: dict[int, int] = {}
        self._label = label
        self._known = {} if known is None else known

    def of(self, bound: Bound, value: Any) -> int:
        """The number of a node, after those of all that it holds."""
        stack = [value]
        while stack:
            value = stack[-1]
            missing = [one for one in bound.held(value) if id(one) not in self.numbers]
            if missing and id(value) not in self.numbers:
                stack += missing
                continue
            if id(value) not in self.numbers:
                label = self._label(bound, value, self.numbers)
                self.numbers[id(value)] = self._known.setdefault(label, len(self._known))
            stack.pop()
        return self.numbers[id(value)]


def content(bound: Bound, value: Any, numbers: Numbers) -> Hashable:
    """Alike are parts that build equal things: calls, values and tags, whoever said them."""
    return _label(bound, value, numbers, lambda argument: True)


def writing(bound: Bound, value: Any, numbers: Numbers) -> Hashable:
    """Alike are parts that are written alike, whatever they hear."""
    return _label(bound, value, numbers, lambda argument: argument.said is None)


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


def _label(
    bound: Bound, value: Any, numbers: Numbers, counts: Callable[[Argument], bool]
) -> Hashable:
    def key_of(held: Any) -> Hashable:
        return ("node", numbers[id(held)]) if bound.has_parts(held) else leaf_key(held)

    if not isinstance(value, fdl.Buildable):
        items = [(step, key_of(child)) for step, child in children(value)]
        return call_of(value), frozenset(items) if isinstance(value, dict) else tuple(items)
    return call_of(value), tuple(
        (key, tags_of(value, key), key_of(argument.value) if counts(argument) else None)
        for key, argument in bound.arguments(value).items()
    )
