"""The difference between two graphs, as a list of changes."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph.difference.align import Argument, Bound, place_of
from fidgpt.graph.difference.changes import (
    Change,
    ItemMoved,
    PartAdded,
    PartRemoved,
    PartReplaced,
    SharingChanged,
    Side,
    TagsChanged,
    ValueChanged,
    plain_changes,
)
from fidgpt.graph.difference.compare import Aspect, Comparison, Edge


class Changes(list[Change]):
    """The differences between two graphs, which it remembers.

    Attributes:
      old: the old graph.
      new: the new one.
    """

    def __init__(self, changes: Iterable[Change], old: Any, new: Any) -> None:
        super().__init__(changes)
        self.old = old
        self.new = new


def diff(old: Any, new: Any) -> Changes:
    """What differs between two graphs once they are bound; empty if they build the same.

    A value that is heard in many places is one change, at the place that says it. A default and
    the same value set by hand are no difference, nor are a value heard and the same value said.
    Parts are compared by their places, items of lists by what they hold. A part that two places
    share is kept apart from two equal parts. Takes time linear in the size of the graphs.

    Raises:
      ConfigErrors: one of the graphs cannot be bound.
    """
    return Target(new).since(old)


class Target:
    """A graph that many are compared with, which is read once.

    Attributes:
      root: the graph, which must stay as it is.
    """

    def __init__(self, root: Any) -> None:
        self.root = root

    @gc_paused()
    def since(self, old: Any) -> Changes:
        """What differs from an older graph, as `diff` finds it.

        Raises:
          ConfigErrors: one of the graphs cannot be bound.
        """
        changes = plain_changes(old, self.root)
        if changes is None:
            changes = changes_of(Comparison(old, self.root, whole=False, known=self._bound))
        return Changes(changes, old, self.root)

    @functools.cached_property
    def _bound(self) -> Bound:
        return Bound(self.root)


def changes_of(comparison: Comparison) -> list[Change]:
    """The changes that a comparison found."""
    return [change for _, change in read(comparison) if change is not None]


def read(comparison: Comparison) -> Iterator[tuple[Edge, Change | None]]:
    """The edges that differ, each with its change; None where it follows from another change."""
    return _Reading(comparison).changes()


class _Reading:
    """Turns edges into changes, once all parts that could be paired are."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._sides = (comparison.old, comparison.new)
        self._reported: set[int] = set()  # parts that came or went and are told of
        self._changed = {
            place
            for aspect, edge in comparison.found()
            if aspect in (Aspect.VALUE, Aspect.CALL) and not self._only_heard(edge)
            for place in edge.places[bool(edge.copy) :]
            if place is not None
        }

    def changes(self) -> Iterator[tuple[Edge, Change | None]]:
        for aspect, edge in self._comparison.found():
            if aspect is Aspect.VALUE and edge.is_heard and self._comparison.is_same(edge):
                continue
            old, new = self._side(0, edge), self._side(1, edge)
            match aspect:
                case Aspect.TAGS:
                    before, now = map(set, edge.tags)
                    lost, won = tuple(sorted(before - now)), tuple(sorted(now - before))
                    yield edge, TagsChanged(old, new, lost, won)
                case Aspect.POSITION:
                    yield edge, ItemMoved(old, new)
                case Aspect.CALL:
                    yield edge, PartReplaced(old, new)
                case Aspect.VALUE if self._is_consequence(edge):
                    yield edge, None
                case Aspect.VALUE:
                    yield edge, self._value_change(edge, old, new)

    def _side(self, which: int, edge: Edge) -> Side:
        bound: Bound = self._sides[which]
        argument: Argument = (edge.old, edge.new)[which]
        place = edge.places[which]
        path = None if place is None else bound.path_of(place)
        return Side(
            path,
            bound.original(argument.value),
            said_by=argument.said.path if argument.said else None,
            is_default=argument.is_default,
            shared_with=None if path is None else bound.other_place(argument.value, path),
        )

    def _is_consequence(self, edge: Edge) -> bool:
        """Whether what is heard differs because of a change that is told elsewhere."""
        if not self._only_heard(edge):
            return False
        sources = [argument.said for argument in (edge.old, edge.new) if argument.said]
        return any(place_of(said) in self._changed for said in sources)

    def _only_heard(self, edge: Edge) -> bool:
        """Whether neither graph says anything in this very place."""
        return edge.is_heard and not edge.old.is_own and not edge.new.is_own

    def _value_change(self, edge: Edge, old: Side, new: Side) -> Change:
        was, now = edge.old.value, edge.new.value
        had, has = self._sides[0].has_parts(was), self._sides[1].has_parts(now)
        if not had and not has:
            return ValueChanged(old, new, self._hearers(edge))
        if isinstance(was, fdl.Buildable) and isinstance(now, fdl.Buildable):
            is_equal = self._comparison.are_alike(was, now)
            self._report(0, was)
            return SharingChanged(old, new, is_equal)
        if had and has:
            return PartReplaced(old, new)
        if edge.like is not None and self._comparison.is_copy(edge):
            partner = self._comparison.heir(edge.like)
            paths = self._comparison.new.paths
            return PartAdded(old, new, like=paths.get(id(partner)))
        which, part, change = (1, now, PartAdded) if has else (0, was, PartRemoved)
        lives_elsewhere = isinstance(part, fdl.Buildable) and self._is_known(part)
        self._report(which, part)
        return SharingChanged(old, new) if lives_elsewhere else change(old, new)

    def _hearers(self, edge: Edge) -> tuple[str, ...]:
        old, new = edge.places
        found = self._sides[1].hearers(new) if new else ()
        return found or (self._sides[0].hearers(old) if old else ())

    def _is_known(self, part: Any) -> bool:
        return self._comparison.has_met(part) or id(part) in self._reported

    def _report(self, which: int, value: Any) -> None:
        """Remembers a part that came or went, with all the parts that only it holds."""
        stack = [value]
        while stack:
            value = stack.pop()
            if self._sides[which].has_parts(value) and not self._is_known(value):
                self._reported.add(id(value))
                stack += self._sides[which].held(value)
