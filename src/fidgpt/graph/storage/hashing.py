"""Structural hashes and fingerprints of graphs."""

import enum
import json
import math
import types
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.graph.errors import ConfigError
from fidgpt.graph.fiddle import Key, named_defaults
from fidgpt.graph.storage.codec import encode
from fidgpt.graph.storage.order import PLAIN, Order
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
    """The numbers of the nodes of a graph, each made when it is asked for, children first.

    Two nodes have the same number exactly if they call the same with the same values, defaults
    and what is heard included, carry the same tags, and share the same nodes inside. A part that
    several places hold is numbered among its equals within its owner, so that a number inside a
    block does not depend on what lies around the block.

    Attributes:
      order: the graph, walked.
    """

    def __init__(
        self,
        order: Order,
        table: Table,
        kind: Callable[[Any], Hashable] | None = None,
    ) -> None:
        """Numbers a graph.

        Args:
          order: the graph, walked.
          table: gives the numbers.
          kind: the same only for nodes that have the same key; `order.kind` unless said.
        """
        self.order = order
        self._table = table
        self.kind = kind or order.kind
        self._content: dict[int, int] = {}
        self._of_kind: dict[Hashable, int] = {}

    @property
    def root(self) -> int:
        """The number of the whole graph."""
        return self.number(self.order.root)

    @property
    def num_different(self) -> int:
        """How many nodes there are of different content."""
        self.content(self.order.root)
        return len(set(self._of_kind.values()))

    @property
    def num_kinds(self) -> int:
        """How many nodes there are of different kinds."""
        self.content(self.order.root)
        return len(self._of_kind)

    def number(self, value: Any) -> int:
        """The number of a node."""
        found = self._with_sharing.get(id(value)) if self.order.several else None
        return self.content(value) if found is None else found

    def content(self, value: Any) -> int:
        """The number of a node, sharing left out."""
        number = self._content.get(id(value))
        if number is not None:
            return number
        if not self._content:
            self._count_all()
        number = self._of_kind.get(self.kind(value))
        if number is not None:
            self._content[id(value)] = number
            return number
        todo = [value]
        while todo:
            one = todo[-1]
            kind = self.kind(one)
            missing: list[Any] = []
            if kind not in self._of_kind:
                missing = [held for held in self.order.held(one) if id(held) not in self._content]
            if missing:
                todo += reversed(missing)
            else:
                self._count(todo.pop(), kind)
        return self._content[id(value)]

    def _count_all(self) -> None:
        """Numbers every node, where to ask for its kind costs less than to look for those left."""
        for value in () if self.order.hears and self.order.has_many_twins else self.order.nodes:
            self._count(value, self.kind(value))

    def _count(self, value: Any, kind: Hashable) -> None:
        """Numbers a node, of which all that it holds has a number, or another of its kind."""
        number = self._of_kind.get(kind)
        if number is None:
            number = self._of_kind[kind] = self._table.number(self._key(value), value)
        self._content[id(value)] = number

    def _arguments(self, part: Any) -> dict[Key, Any]:
        """The arguments of a part that count."""
        return self.order.arguments(part)

    def _key(self, value: Any) -> tuple[Hashable, ...]:
        return self._part(value) if IS_PART[type(value)] else self._container(value)

    def _part(self, part: Any) -> tuple[Hashable, ...]:
        arguments = self._arguments(part)
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
        told, words, known = list(kinds), list(values), self._content
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
        if not self.order.several:
            return found
        depth = self.order.owners.depth
        for value in self.order.nodes:
            me = id(value)
            inside = [highest[id(one)] for one in self.order.held(value) if id(one) in highest]
            if inside and me in depth and min(inside) >= depth[me]:
                found.add(me)
            if me in self.order.several:
                inside.append(depth[self.order.owners.owner(value)])
            if inside:
                highest[me] = min(inside)
        return found

    @cached_property
    def _with_sharing(self) -> dict[int, int]:
        """The numbers of the parts that are shared, and of all that hold them."""
        self.content(self.order.root)  # the numbers that say nothing of sharing come first
        moved: dict[int, int] = {}
        ranks: dict[tuple[int, int], int] = {}
        owners, several = self.order.owners, self.order.several
        for value in self.order.nodes:
            me, held = id(value), self.order.held(value)
            if not moved.keys().isdisjoint(map(id, held)):
                inside = tuple([moved.get(id(one)) or self.content(one) for one in held])
                moved[me] = self._of_sharing(Sharing(self.content(value), inside))
            if me in several:
                owner, number = owners.owner(value), moved.get(me) or self.content(value)
                rank = ranks[owner, number] = ranks.get((owner, number), -1) + 1
                moved[me] = self._of_sharing(Sharing(number, None, owners.depth[owner], rank))
        return moved

    def _of_sharing(self, sharing: Sharing) -> int:
        return self._table.number(sharing, sharing)


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


class NotedMerkle(Merkle):
    """Numbers that are the same for nodes of one content of which a note is the same too."""

    def __init__(
        self,
        plain: Merkle,
        note: Callable[[Any], Hashable],
    ) -> None:
        """Numbers a graph.

        Args:
          plain: the numbers of what is equal but for the notes; nodes of one of its kinds have the
            same note.
          note: what else of a part must be equal.
        """
        super().__init__(plain.order, Table(), plain.kind)
        self._plain = plain
        self._note = note

    def number(self, value: Any) -> int:
        """The number of a node."""
        return self._plain.number(value) if self._adds_nothing else super().number(value)

    @cached_property
    def _adds_nothing(self) -> bool:
        """Whether notes are the same wherever content is, so that sharing need not be looked at.

        Content is the same for nodes of one note, as notes are for nodes of one kind.
        """
        plain, noted = self._plain.num_different, self._plain.num_kinds
        return plain == noted or plain == self.num_different

    def _key(self, value: Any) -> tuple[Hashable, ...]:
        inside = tuple([self._content[id(one)] for one in self.order.held(value)])
        note = self._note(value) if IS_PART[type(value)] else None
        return self._plain.content(value), inside, note


class WrittenMerkle(Merkle):
    """Numbers that are the same for nodes that are written alike, whatever they hear."""

    def _arguments(self, part: Any) -> dict[Key, Any]:
        return super()._arguments(part) | dict.fromkeys(self.order.heard_by(part), fdl.NO_VALUE)
