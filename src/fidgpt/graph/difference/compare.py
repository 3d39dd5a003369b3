"""Comparison of two graphs, node by node."""

import enum
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.cloning import copies_of
from fidgpt.graph.difference.align import (
    NOTHING,
    Argument,
    Bound,
    Items,
    ParameterRef,
    are_comparable,
    call_of,
    function_of,
    tags_of,
)
from fidgpt.graph.hints import is_quantity
from fidgpt.graph.storage.hashing import Table, leaf_key
from fidgpt.graph.walk import IS_NODE, nodes, step_to

Tags = tuple[str, ...]


class Aspect(enum.Enum):
    """In what two graphs differ at an edge."""

    TAGS = enum.auto()
    POSITION = enum.auto()  # the item stands before or after others than it did
    CALL = enum.auto()  # the part that stands there calls something else
    VALUE = enum.auto()  # another value, or a heard one, which may be the same


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """The same argument, or item, of a node of the old graph and of its partner in the new one.

    Attributes:
      holders: the identities of the two nodes.
      steps: what leads from each; None where this one has no such item.
      old: what the old graph holds there.
      new: what the new one holds there.
      tags: the names of its tags in each graph.
      is_moved: whether it is an item that has left its place among the others.
      like: of an item that came, the old item that it resembles.
      copy: of which copy of old parts this is a place; 0 for the pairs that all starts with.
    """

    holders: tuple[int, int]
    steps: tuple[str | None, str | None]
    old: Argument
    new: Argument
    tags: tuple[Tags, Tags] = ((), ())
    is_moved: bool = False
    like: Any = None
    copy: int = 0

    @property
    def is_heard(self) -> bool:
        return self.old.said is not None or self.new.said is not None

    @property
    def places(self) -> tuple[ParameterRef | None, ParameterRef | None]:
        """The place in each graph."""
        old, new = self.steps
        return (
            None if old is None else (self.holders[0], old),
            None if new is None else (self.holders[1], new),
        )


Finding = tuple[Aspect, Edge]


class Comparison:
    """Walks both graphs at once, from the root, and pairs their parts.

    A part is paired with the first one that it meets in its place. Where another two meet later,
    the graphs do not share the same. A new part that has no partner then, but was met by an old
    one, or resembles one, is a copy of that, and is compared with it once all pairs are made.
    Every new part is looked into once.

    Attributes:
      old: the old graph, bound.
      new: the new one.
    """

    def __init__(
        self, old: Any, new: Any, *, whole: bool = True, known: Bound | None = None
    ) -> None:
        """Compares two graphs.

        Args:
          old: the old graph.
          new: the new one.
          whole: whether parts are paired too that lie inside of equal ones; for what differs,
            they need not be looked into.
          known: the new graph as it was read for an earlier comparison; None to read it.

        Raises:
          ConfigErrors: one of the graphs cannot be bound.
        """
        table = known.table if known else Table()
        self.old, self.new = Bound(old, table), known or Bound(new, table)
        if self.old.overlaps(self.new):  # what is known of parts is known by their identity
            found = nodes(new)
            copies = copies_of(found)
            originals = {id(copies[id(node.value)]): node.value for node in found}
            self.new = Bound(copies[id(new)], table, originals)
        self._whole = whole
        self._items = Items(self.old, self.new)
        self._became: dict[tuple[int, int], Any] = {}  # by the copy and the identity of the old
        self._was: dict[int, Any] = {}  # by the identity of the new
        self._containers: set[tuple[int, int]] = set()
        self._found: list[list[Finding]] = [[]]  # by the copy
        self._copies: dict[int, int] = {}  # which copy begins at an edge, by its identity
        self._later: deque[tuple[Edge, Any, Any]] = deque()
        self._walk(Edge((0, 0), ("", ""), Argument(self.old.root), Argument(self.new.root)))
        while self._later:
            self._copy(*self._later.popleft())

    def found(self) -> Iterator[Finding]:
        """The edges at which the graphs differ, and in what, in order.

        Edges at which a value is heard are all among them: ask `is_same`.
        """
        stack = [iter(self._found[0])]
        while stack:
            finding = next(stack[-1], None)
            if finding is None:
                stack.pop()
                continue
            yield finding
            aspect, edge = finding
            if aspect is Aspect.VALUE and self.is_copy(edge):
                stack.append(iter(self._found[self._copies[id(edge)]]))

    def is_copy(self, edge: Edge) -> bool:
        """Whether the new part at an edge is compared with one that has another partner."""
        return id(edge) in self._copies

    def is_same(self, edge: Edge) -> bool:
        """Whether both graphs hold the same at an edge: paired parts, or equal values."""
        old, new = edge.old.value, edge.new.value
        if not self.old.has_parts(old) and not self.new.has_parts(new):
            return leaf_key(old) == leaf_key(new)
        is_met = (id(old), id(new)) in self._containers
        return is_met or any(self.are_paired(old, new, copy=copy) for copy in (0, edge.copy))

    def are_paired(self, old: Any, new: Any, *, copy: int = 0) -> bool:
        """Whether two parts stand for each other."""
        return self._was.get(id(new)) is old and self._became.get((copy, id(old))) is new

    def predecessor(self, new: Any) -> Any:
        """The old part that a new one stands for; None if it came, or is a copy."""
        old = self._was.get(id(new))
        return old if old is not None and self.are_paired(old, new) else None

    def heir(self, old: Any) -> Any:
        """The new part that stands for an old one; None if it went."""
        return self._became.get((0, id(old)))

    def has_met(self, value: Any) -> bool:
        """Whether a part, old or new, has met one of the other graph."""
        return id(value) in self._was or (0, id(value)) in self._became

    def _walk(self, *edges: Edge) -> None:
        stack = list(reversed(edges))
        while stack:
            stack += reversed(list(self._visit(stack.pop())))

    def _visit(self, edge: Edge) -> Iterator[Edge]:
        if edge.tags[0] != edge.tags[1]:
            self._find(Aspect.TAGS, edge)
        if edge.is_moved:
            self._find(Aspect.POSITION, edge)
        old, new = edge.old.value, edge.new.value
        if self._is_settled(old, new, edge.copy):
            return
        if edge.is_heard:
            self._find(Aspect.VALUE, edge)
        elif isinstance(old, fdl.Buildable) and isinstance(new, fdl.Buildable):
            yield from self._meet(edge, old, new)
        elif are_comparable(old, new) and (self.old.has_parts(old) or self.new.has_parts(new)):
            yield from self._open(edge, old, new)
        elif not self.is_same(edge):
            self._find(Aspect.VALUE, edge)
            if edge.like is not None:
                self._later.append((edge, edge.like, new))

    def _is_settled(self, old: Any, new: Any, copy: int) -> bool:
        """Whether two nodes are equal, and nothing inside them is shared with anything outside.

        A copy is looked into: what is one for all calls of a factory is not one for its copy.
        """
        if self._whole or copy or not (self.old.knows(old) and self.new.knows(new)):
            return False
        number = self.old.merkle.number(old)
        if number != self.new.merkle.number(new):
            return False
        if number != self.old.merkle.content(old) and not self._are_closed(old, new):
            return False
        has_other = self._was.get(id(new), old) is not old
        if has_other or self._became.setdefault((copy, id(old)), new) is not new:
            return False
        self._was[id(new)] = old
        return True

    def _are_closed(self, old: Any, new: Any) -> bool:
        return id(old) in self.old.merkle.closed and id(new) in self.new.merkle.closed

    def are_alike(self, old: Any, new: Any) -> bool:
        """Whether two nodes are equal but for sharing."""
        return self.old.merkle.content(old) == self.new.merkle.content(new)

    def _meet(self, edge: Edge, old: fdl.Buildable, new: fdl.Buildable) -> Iterator[Edge]:
        if self.is_same(edge):
            return
        is_first = (edge.copy, id(old)) not in self._became and id(new) not in self._was
        if is_first and not (edge.copy and self._would_share(old)):
            if call_of(old) != call_of(new):
                self._find(Aspect.CALL, edge)
            yield from self._pair(old, new, edge.copy)
        else:
            self._find(Aspect.VALUE, edge)
            self._later.append((edge, old, new))

    def _would_share(self, old: fdl.Buildable) -> bool:
        """Whether the copy of what holds a part would hold that very part."""
        return self.old.is_shared_object(old) and not is_quantity(old)

    def _open(self, edge: Edge, old: Any, new: Any) -> Iterator[Edge]:
        if (id(old), id(new)) in self._containers:
            return
        self._containers.add((id(old), id(new)))
        if type(old) is not type(new):
            self._find(Aspect.CALL, edge)
        for pair in self._items.pairs(old, new):
            if not pair.is_moved and self._is_settled(*pair.values, edge.copy):
                continue
            one, other = (Argument(value) for value in pair.values)
            yield Edge(
                (id(old), id(new)),
                pair.steps,
                one,
                other,
                is_moved=pair.is_moved,
                like=pair.like,
                copy=edge.copy,
            )

    def _pair(self, old: Any, new: Any, copy: int) -> Iterator[Edge]:
        """Pairs two parts, and goes on with their arguments."""
        self._became[copy, id(old)] = new
        self._was[id(new)] = old
        olds, news = self.old.arguments(old), self.new.arguments(new)
        calls_same = function_of(old) == function_of(new)
        is_alike = not self._whole and self.are_alike(old, new)
        for key in {**olds, **news}:
            one, other = olds.get(key, NOTHING), news.get(key, NOTHING)
            if is_alike and not (IS_NODE[type(one.value)] or IS_NODE[type(other.value)]):
                continue  # only in what is shared inside may the two differ
            if not calls_same and _comes_with_the_call(one, other):
                continue
            has_both = calls_same or (key in olds and key in news)
            yield Edge(
                (id(old), id(new)),
                (step_to(key), step_to(key)),
                one,
                other,
                tags=(tags_of(old, key), tags_of(new, key)) if has_both else ((), ()),
                copy=copy,
            )

    def _copy(self, edge: Edge, old: Any, new: Any) -> None:
        if id(new) in self._was:  # it found its partner after all
            return
        self._copies[id(edge)] = copy = len(self._found)
        self._found.append([])
        self._walk(*self._pair(old, new, copy))

    def _find(self, aspect: Aspect, edge: Edge) -> None:
        self._found[edge.copy].append((aspect, edge))


def _comes_with_the_call(old: Argument, new: Argument) -> bool:
    """Whether an argument differs only because another call has other parameters or defaults."""
    if old.is_own or new.is_own:
        return False
    has_both = old.value is not fdl.NO_VALUE and new.value is not fdl.NO_VALUE
    return not has_both or (old.said is None and new.said is None)
