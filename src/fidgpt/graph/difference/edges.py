"""A place of two graphs side by side, and in what they may differ there."""

import enum
from dataclasses import dataclass
from typing import Any

from fidgpt.graph.difference.bound import Argument, Place

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
    def places(self) -> tuple[Place | None, Place | None]:
        """The place in each graph."""
        old, new = self.steps
        return (
            None if old is None else (self.holders[0], old),
            None if new is None else (self.holders[1], new),
        )


Finding = tuple[Aspect, Edge]
