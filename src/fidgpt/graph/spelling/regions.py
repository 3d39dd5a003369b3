"""Where in a graph changes are, told apart by the places that they name."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fidgpt.graph.difference.changes import Change

_KEY = re.compile(r"\[[^\]]*\]")
_STEP = re.compile(r"\.|\[")


@dataclass(frozen=True, slots=True)
class Region:
    """Places of a graph.

    Attributes:
      places: their paths, without which item of a list is meant.
      around: those of what holds them.
    """

    places: frozenset[str]
    around: frozenset[str]

    def meets(self, other: "Region") -> bool:
        """Whether a place of one is one of the other, lies in it, or holds it."""
        shared = self.places & (other.places | other.around)
        return bool(shared or self.around & other.places)


NOWHERE = Region(frozenset(), frozenset())


def region_of(changes: "Iterable[Change]") -> Region:
    """The places of which changes tell."""
    found: set[str | None] = set()
    for change in changes:
        found |= {change.path, *getattr(change, "heard_by", ())}
        for side in (change.old, change.new):
            found |= {side.path, side.shared_with}
    places = frozenset(_KEY.sub("[*]", path) for path in found if path)
    around = frozenset(path[: cut.start()] for path in places for cut in _STEP.finditer(path))
    return Region(places, around)
