"""What a drawing of a graph shows: boxes with rows, and arrows between them."""

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from fidgpt.graph.drawing.overlay import Mark


class Kind(enum.Enum):
    """What becomes of a part."""

    OBJECT = enum.auto()
    FACTORY = enum.auto()  # called later, or anew at every call
    QUANTITY = enum.auto()  # computes a number


@dataclass(slots=True)
class Row:
    """One argument of a part.

    Attributes:
      name: how the part calls it, with the index or key of an item.
      text: the value; empty for a part, to which an arrow leads.
      was: the old value, where a difference is drawn.
      tags: the quantities that it says, or hears.
      lost_tags: those that it no longer carries.
      is_heard: whether the value is said elsewhere.
      mark: what became of it.
    """

    name: str
    text: str = ""
    was: str = ""
    tags: tuple[str, ...] = ()
    lost_tags: tuple[str, ...] = ()
    is_heard: bool = False
    mark: Mark = Mark.NONE


@dataclass(slots=True)
class Box:
    """One part.

    Attributes:
      path: the first place that holds it.
      title: what it calls.
      kind: what becomes of it.
      is_shared: whether several places, or all calls of a factory, hold the one object.
      old_title: what it called, if that was something else.
      count: how many equal items of a list it stands for.
      mark: what became of it.
      rows: its arguments.
    """

    path: str
    title: str
    kind: Kind
    is_shared: bool = False
    old_title: str = ""
    count: int = 1
    mark: Mark = Mark.NONE
    rows: list[Row] = field(default_factory=list)

    @property
    def is_dim(self) -> bool:
        """Whether a difference is drawn, and this part has none."""
        told = {Mark.CHANGED, Mark.ADDED, Mark.REMOVED}
        return self.mark is Mark.SAME and not any(row.mark in told for row in self.rows)


class Arrow(NamedTuple):
    """A row of one box that holds another box."""

    tail: int
    row: int
    head: int
    is_heard: bool = False
    mark: Mark = Mark.NONE


class Picture(NamedTuple):
    """All boxes, in reading order from the root, and all arrows between them."""

    boxes: list[Box]
    arrows: list[Arrow]
