"""The difference between two graphs, as a list of changes."""

from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from fidgpt.graph.bound import Argument, Bound
from fidgpt.graph.changes import (
    Change,
    ItemMoved,
    PartAdded,
    PartRemoved,
    PartReplaced,
    SharingChanged,
    Side,
    TagsChanged,
    ValueChanged,
)
from fidgpt.graph.compare import Aspect, Comparison, Edge
from fidgpt.graph.walk import children


def diff(old: Any, new: Any) -> list[Change]:
    """What differs between two graphs once they are bound; empty if they build the same.

    A value that is heard in many places is one change, at the place that says it. A default and
    the same value set by hand are no difference, nor are a value heard and the same value said.
    Parts are compared by their places, items of lists by what they hold. A part that two places
    share is kept apart from two equal parts. Takes time linear in the size of the graphs.

    Raises:
      ConfigErrors: one of the graphs cannot be bound.
    """
    return changes_of(Comparison(old, new))


def changes_of(comparison: Comparison) -> list[Change]:
    """The changes that a comparison found."""
    return list(_Reading(comparison).changes())


class _Reading:
    """Turns edges into changes, once all parts that could be paired are."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._sides = (comparison.old, comparison.new)
        self._reported: set[int] = set()  # parts that came or went and are told of
        self._changed = {
            place
            for aspect, edge in comparison.found()
            if edge.places and not edge.is_heard and aspect in (Aspect.VALUE, Aspect.CALL)
            for place in edge.places[bool(edge.copy) :]
        }

    def changes(self) -> Iterator[Change]:
        for aspect, edge in self._comparison.found():
            old, new = self._side(0, edge), self._side(1, edge)
            match aspect:
                case Aspect.TAGS:
                    before, now = map(set, edge.tags)
                    yield TagsChanged(
                        old, new, tuple(sorted(before - now)), tuple(sorted(now - before))
                    )
                case Aspect.POSITION:
                    yield ItemMoved(old, new)
                case Aspect.CALL:
                    yield PartReplaced(old, new)
                case Aspect.VALUE:
                    if not edge.is_heard or not self._is_consequence(edge):
                        yield self._value_change(edge, old, new)

    def _side(self, which: int, edge: Edge) -> Side:
        bound: Bound = self._sides[which]
        argument: Argument = (edge.old, edge.new)[which]
        path = edge.paths[which]
        return Side(
            path,
            bound.original(argument.value),
            said_by=argument.said.path if argument.said else None,
            is_default=argument.is_default,
            shared_with=None if path is None else bound.other_place(argument.value, path),
        )

    def _is_consequence(self, edge: Edge) -> bool:
        """Whether a heard value is the same, or another because of a change told elsewhere."""
        if self._comparison.is_same(edge):
            return True
        if edge.old.is_own or edge.new.is_own:
            return False
        sources = [argument.said for argument in (edge.old, edge.new) if argument.said]
        return any((id(said.node.value), said.key) in self._changed for said in sources)

    def _value_change(self, edge: Edge, old: Side, new: Side) -> Change:
        was, now = edge.old.value, edge.new.value
        had, has = self._sides[0].has_parts(was), self._sides[1].has_parts(now)
        if not had and not has:
            return ValueChanged(old, new, self._hearers(edge))
        if isinstance(was, fdl.Buildable) and isinstance(now, fdl.Buildable):
            is_equal = self._comparison.content[id(was)] == self._comparison.content[id(now)]
            self._report(1, now)
            return SharingChanged(old, new, is_equal)
        if had and has:
            return PartReplaced(old, new)
        if edge.like is not None and self._comparison.is_copy(edge):
            partner = self._comparison.partner(edge.like)
            paths = self._comparison.new.paths
            return PartAdded(old, new, like=paths.get(id(partner)))
        which, part, change = (1, now, PartAdded) if has else (0, was, PartRemoved)
        lives_elsewhere = isinstance(part, fdl.Buildable) and self._is_known(part)
        self._report(which, part)
        return SharingChanged(old, new) if lives_elsewhere else change(old, new)

    def _hearers(self, edge: Edge) -> tuple[str, ...]:
        if edge.places is None:
            return ()
        old, new = edge.places
        return tuple(self._sides[1].hearers.get(new) or self._sides[0].hearers.get(old, ()))

    def _is_known(self, part: Any) -> bool:
        return self._comparison.has_met(part) or id(part) in self._reported

    def _report(self, which: int, value: Any) -> None:
        """Remembers a part that came or went, with all the parts that only it holds."""
        stack = [value]
        while stack:
            value = stack.pop()
            if self._sides[which].has_parts(value) and not self._is_known(value):
                self._reported.add(id(value))
                stack += [child for _, child in children(value)]
