"""A difference laid over the new graph: what became of each part and of each place."""

import enum
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.difference.bound import Bound, Place
from fidgpt.graph.difference.changes import Change, ItemMoved, PartReplaced, TagsChanged, short
from fidgpt.graph.difference.compare import Comparison
from fidgpt.graph.difference.diff import read
from fidgpt.graph.difference.edges import Edge
from fidgpt.graph.structure.walk import title


class Mark(enum.Enum):
    """What became of a part, a place or an arrow."""

    NONE = enum.auto()  # no difference is drawn
    SAME = enum.auto()
    FOLLOWED = enum.auto()  # hears another value than it did
    CHANGED = enum.auto()
    ADDED = enum.auto()
    REMOVED = enum.auto()


@dataclass(slots=True)
class Note:
    """What a difference says of one place of the new graph.

    Attributes:
      mark: what became of it.
      was: the old value as text; empty where there was none, or a part.
      gone: the old part that stood there; None where there was none, or the same.
      lost_tags: the quantities that it no longer carries.
    """

    mark: Mark
    was: str = ""
    gone: Any = None
    lost_tags: tuple[str, ...] = ()


class Overlay:
    """No difference: every part and place is what it is.

    Attributes:
      old: the old graph; None without a difference.
    """

    old: Bound | None = None

    def mark(self, part: Any) -> Mark:
        """What became of a part."""
        return Mark.NONE

    def note(self, place: Place) -> Note:
        """What became of a place."""
        return Note(Mark.NONE)

    def old_title(self, part: Any) -> str:
        """What the part called before it called something else; empty where it did not."""
        return ""

    def left(self, container: Any) -> list[tuple[str, Any]]:
        """The items that a list lost, each with the step that led to it."""
        return []

    def heir(self, gone: Any) -> Any:
        """The new part that stands for an old one; None where it went."""
        return None


class Difference(Overlay):
    """What became of the parts and places of a graph since an old one."""

    def __init__(self, comparison: Comparison) -> None:
        self.old = comparison.old
        self._comparison = comparison
        self._notes: dict[Place, Note] = {}
        self._left: dict[int, list[tuple[str, Any]]] = {}
        self._old_titles: dict[int, str] = {}
        for edge, change in read(comparison):
            self._take(edge, change)

    def mark(self, part: Any) -> Mark:
        if self._comparison.old.knows(part):
            return Mark.REMOVED
        if self._comparison.predecessor(part) is None:
            return Mark.ADDED
        return Mark.CHANGED if id(part) in self._old_titles else Mark.SAME

    def note(self, place: Place) -> Note:
        return self._notes.get(place) or Note(Mark.SAME)

    def old_title(self, part: Any) -> str:
        return self._old_titles.get(id(part), "")

    def left(self, container: Any) -> list[tuple[str, Any]]:
        return self._left.get(id(container), [])

    def heir(self, gone: Any) -> Any:
        return self._comparison.heir(gone)

    def _take(self, edge: Edge, change: Change | None) -> None:
        _, place = edge.places
        if place is None:
            self._left.setdefault(edge.holders[1], []).append((edge.steps[0] or "", edge.old.value))
            return
        if isinstance(change, PartReplaced) and self._comparison.is_same(edge):
            self._old_titles[id(edge.new.value)] = title(edge.old.value)
        elif isinstance(change, TagsChanged):
            self._notes.setdefault(place, Note(Mark.CHANGED)).lost_tags = change.removed
        elif isinstance(change, ItemMoved):
            self._notes[place] = Note(Mark.CHANGED, was=edge.steps[0] or "")
        else:
            lost_tags = self.note(place).lost_tags
            self._notes[place] = self._changed(edge, is_own=change is not None, lost_tags=lost_tags)

    def _changed(self, edge: Edge, *, is_own: bool, lost_tags: tuple[str, ...]) -> Note:
        was, now = edge.old.value, edge.new.value
        if not is_own:
            mark = Mark.FOLLOWED
        elif was is fdl.NO_VALUE:
            mark = Mark.ADDED
        else:
            mark = Mark.REMOVED if now is fdl.NO_VALUE else Mark.CHANGED
        if self._comparison.old.has_parts(was):
            return Note(mark, gone=was, lost_tags=lost_tags)
        is_told = was is not fdl.NO_VALUE and not (
            was is None and self._comparison.new.has_parts(now)
        )
        text = short(was) if is_told else ""
        return Note(mark, was=text, lost_tags=lost_tags)
