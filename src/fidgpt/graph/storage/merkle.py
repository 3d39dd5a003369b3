"""A number for every node of a graph: the same for nodes that build the same in every respect."""

import enum
import json
import math
import types
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

from fidgpt.graph.arguments import named_defaults
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.storage.codec import encode
from fidgpt.graph.storage.order import PLAIN, Order
from fidgpt.graph.storage.owners import Owners
from fidgpt.graph.walk import IS_PART

_EXACT = PLAIN | {float}
_NO_TAGS: frozenset[Any] = frozenset()
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)  # equal only if they are one


class Sharing(NamedTuple):
    """What a number says beyond that of the node's own content.

    Attributes:
      content: the number without it.
      held: the numbers of the nodes that it holds, some of which are shared; None if none is.
      depth: of a shared part, how deep its owner lies; None of others.
      rank: which of its owner's equal shared parts it is.
    """

    content: int
    held: tuple[int, ...] | None
    depth: int | None = None
    rank: int = 0


class Table:
    """The numbers given so far; graphs numbered by one table can be compared.

    Attributes:
      samples: for each number the node that it was given to first, or what it adds to another
        number, as a `Sharing`.
    """

    def __init__(self) -> None:
        self.samples: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, sample: Any) -> int:
        """The number of a key; a new one for a new key."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.samples)
            self.samples.append(sample)
        return number


class Merkle:
    """The numbers of all nodes of a graph, made in one pass, children first.

    Two nodes have the same number exactly if they call the same with the same values, defaults
    and what is heard included, carry the same tags, and share the same nodes inside. A part that
    several places hold is numbered among its equals within its owner, so that a number inside a
    block does not depend on what lies around the block.

    Attributes:
      order: the graph, walked.
      content: the numbers by the identity of the node, sharing left out.
      numbers: the same with sharing.
      owners: who owns what is shared; None where nothing is.
    """

    def __init__(
        self,
        order: Order,
        table: Table,
        note: Callable[[Any], Hashable] | None = None,
        *,
        owners: Owners | None = None,
    ) -> None:
        """Numbers a graph.

        Args:
          order: the graph, walked.
          table: gives the numbers.
          note: what else of a part must be equal.
          owners: who owns what, if that is known.
        """
        self.order = order
        self.content: dict[int, int] = {}
        for value in order.nodes:
            if IS_PART[type(value)]:
                key = self._part(value)
                key = key if note is None else (*key, note(value))
            else:
                key = self._container(value)
            self.content[id(value)] = table.number(key, value)
        self.owners = (owners or Owners(order)) if order.several else None
        self.numbers = self._with_sharing(table, self.owners) if self.owners else self.content

    @property
    def root(self) -> int:
        """The number of the whole graph."""
        return self.numbers[id(self.order.root)]

    def _part(self, part: Any) -> tuple[Hashable, ...]:
        arguments = self.order.arguments[id(part)]
        names = () if named_defaults(part) is not None else tuple(arguments)  # or the call says
        words: tuple[Any, ...] = tuple(arguments.values())
        kinds: tuple[Any, ...] = tuple(map(type, words))
        if not _are_exact(kinds, words):
            kinds, words = self._words(kinds, words)
        tags = tags_key(part) if part.__argument_tags__ else _NO_TAGS
        return type(part), hashable(part.__fn_or_cls__), names, kinds, words, tags

    def _container(self, value: Any) -> tuple[Hashable, ...]:
        if not isinstance(value, dict):
            kinds: tuple[Any, ...] = tuple(map(type, value))
            if _are_exact(kinds, value):
                return type(value), kinds, tuple(value)
            return type(value), *self._words(kinds, value)
        keys = [(type(key), key) for key in value]
        kinds, words = self._words(tuple(map(type, value.values())), value.values())
        return type(value), frozenset(zip(keys, kinds, words, strict=True))

    def _words(
        self, kinds: tuple[Any, ...], values: Iterable[Any]
    ) -> tuple[tuple[Hashable, ...], tuple[Hashable, ...]]:
        """For each value what must agree: its kind, and a word for it."""
        told, words, known = list(kinds), list(values), self.content
        for i, kind in enumerate(kinds):
            if kind in PLAIN:
                continue
            number = known.get(id(words[i]))
            told[i], words[i] = leaf_key(words[i]) if number is None else (_Node, number)
        return tuple(told), tuple(words)

    @cached_property
    def closed(self) -> set[int]:
        """The parts that hold something shared, and nothing that is held from outside of them."""
        found: set[int] = set()
        highest: dict[int, int] = {}  # how deep the highest owner lies of what is shared inside
        if self.owners is None:
            return found
        depth = self.owners.depth
        for value in self.order.nodes:
            me = id(value)
            inside = [highest[id(one)] for one in self.order.held.get(me, ()) if id(one) in highest]
            if inside and me in depth and min(inside) >= depth[me]:
                found.add(me)
            if me in self.order.several:
                inside.append(depth[self.owners.owner(value)])
            if inside:
                highest[me] = min(inside)
        return found

    def _with_sharing(self, table: Table, owners: Owners) -> dict[int, int]:
        numbers = dict(self.content)
        moved: set[int] = set()
        ranks: dict[tuple[int, int], int] = {}
        for value in self.order.nodes:
            me = id(value)
            held = self.order.held.get(me, ())
            if not moved.isdisjoint(map(id, held)):
                inside = tuple(numbers[id(child)] for child in held)
                sharing = Sharing(numbers[me], inside)
                numbers[me] = table.number(sharing, sharing)
                moved.add(me)
            if me in self.order.several:
                owner = owners.owner(value)
                rank = ranks[owner, numbers[me]] = ranks.get((owner, numbers[me]), -1) + 1
                sharing = Sharing(numbers[me], None, owners.depth[owner], rank)
                numbers[me] = table.number(sharing, sharing)
                moved.add(me)
        return numbers


class _Node:
    """The kind of a value that is a node, and has a number."""


class _Written:
    """The kind of a value of which what a file would hold is compared."""


def _are_exact(kinds: tuple[Any, ...], values: Iterable[Any]) -> bool:
    """Whether values of equal kinds are equal if Python says so: -0.0 and nan are not."""
    if not _EXACT.issuperset(kinds):
        return False
    if float not in kinds:
        return True
    odd = [one for one in values if (not one or one != one) and type(one) is float]
    return not odd or all(repr(one) == "0.0" for one in odd)


def leaf_key(value: Any) -> tuple[Hashable, Hashable]:
    """Equal for values that are written alike in a file; 1, 1.0 and True are three values."""
    kind = type(value)
    if kind in PLAIN:
        return kind, value
    if kind is float:
        return kind, value if value and math.isfinite(value) else repr(value)
    if isinstance(value, enum.Enum):
        return kind, value.name
    if isinstance(value, _NAMED):
        return kind, value
    try:
        return _Written, json.dumps(encode(value, {}), sort_keys=True)
    except (ConfigError, KeyError):
        return kind, hashable(value)


def tags_key(part: Any) -> frozenset[Any]:
    """The tags of all parameters that have any."""
    return frozenset([(key, frozenset(own)) for key, own in part.__argument_tags__.items() if own])


def hashable(value: Any) -> Hashable:
    """The value itself, or its identity where it cannot be hashed."""
    if type(value) in _NAMED:
        return value
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value
