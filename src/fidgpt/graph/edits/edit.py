"""What an operation changes, and how it is carried out: first all is asked, then all is done."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError
from fidgpt.graph.selecting.place import Place
from fidgpt.graph.walk import is_node, parts

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


def carry_out(planned: Iterable[Planned]) -> list[Edit]:
    """Puts every value in its place; returns where that changed something.

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
    for place, value in planned:
        if value is fdl.NO_VALUE:
            place.clear()
        else:
            place.fill(value)
    return [edit for edit in edits if not is_same(edit.before, edit.after)]


def is_same(before: Any, after: Any) -> bool:
    """Whether two values are one part, or equal plain values of one type."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if is_node(before) and (parts(before) or parts(after)):
        return False
    return _is_alike(before, after)


def _is_alike(before: Any, after: Any) -> bool:
    """Whether plain values are equal and of one type all through: 1 is not 1.0, nor 0.0 -0.0."""
    if type(before) is not type(after):
        return False
    if isinstance(before, float):
        return repr(before) == repr(after)
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(
            _is_alike(value, after[key]) for key, value in before.items()
        )
    if isinstance(before, list | tuple):
        return len(before) == len(after) and all(map(_is_alike, before, after))
    return bool(before == after)
