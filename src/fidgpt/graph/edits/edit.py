"""What an operation changes, and how it is carried out: first all is asked, then all is done."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.edits.alike import Same, is_same
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.selecting.place import Place

Planned = tuple[Place, Any]  # a place and what it shall hold; fdl.NO_VALUE to take it away


@dataclass(frozen=True, slots=True)
class Edit:
    """One place that an operation changed.

    Attributes:
      path: the place.
      before: what it held; `fdl.NO_VALUE` where nothing was set.
      after: what it holds now, in the same way.
    """

    path: str
    before: Any
    after: Any


def carry_out(planned: Iterable[Planned], *, same: Same = is_same) -> list[Edit]:
    """Puts every value in its place; returns where that changed something.

    Args:
      planned: the values and their places.
      same: whether a value is no other than the one before.

    Raises:
      ConfigError: a value may not be put in its place, and none was.
    """
    planned = list(planned)
    for place, value in planned:
        if value is not fdl.NO_VALUE:
            place.refuse(value)
        elif not isinstance(place.container, fdl.Buildable | dict):
            raise ConfigError(
                f"{place.path} is an item of a {type(place.container).__name__}, and has no "
                f"default to go back to: set {place.holder} whole."
            )
    edits = [Edit(place.path, place.value, value) for place, value in planned]
    edits = [edit for edit in edits if not same(edit.before, edit.after)]
    for place, value in planned:
        if value is fdl.NO_VALUE:
            place.clear()
        else:
            place.fill(value)
    return edits
