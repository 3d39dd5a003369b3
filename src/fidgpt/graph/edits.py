"""Edits of a graph, and copies that they keep alike."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError
from fidgpt.graph.fiddle import set_arguments
from fidgpt.graph.paths import ParameterRef
from fidgpt.graph.walk import is_node, nodes, parts


def is_same(before: Any, after: Any) -> bool:
    """Whether two values are one part, or equal plain values of one type."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if is_node(before) and (parts(before) or parts(after)):
        return False
    return _is_alike(before, after)


class Remaking:
    """Compares what stands in a graph with parts made anew, which are no other if written alike.

    Args:
      root: the graph, as it is before.
      keeps_sharing: whether all places that hold a part will hold the new one.
    """

    def __init__(self, root: Any, *, keeps_sharing: bool) -> None:
        self._root = root
        self._keeps_sharing = keeps_sharing
        self._shared: set[int] | None = None

    def is_same(self, before: Any, after: Any) -> bool:
        """Whether the new value builds what the old one does, and is shared as it was."""
        is_first = self._keeps_sharing
        todo = [(before, after)]
        while todo:
            old, new = todo.pop()
            if is_same(old, new):
                continue
            if not _are_called_alike(old, new) or not (is_first or self._is_its_own(old)):
                return False
            is_first = False
            todo += _pairs(old, new)
        return True

    def _is_its_own(self, value: Any) -> bool:
        """Whether one place alone holds a value."""
        if self._shared is None:
            self._shared = {id(node.value) for node in nodes(self._root) if len(node.parents) > 1}
        return id(value) not in self._shared


Same = Callable[[Any, Any], bool]


def _are_called_alike(old: Any, new: Any) -> bool:
    """Whether two values differ at most in what they hold."""
    if type(old) is not type(new) or not is_node(old):
        return False
    if not isinstance(old, fdl.Buildable):
        return len(old) == len(new) and (not isinstance(old, dict) or old.keys() == new.keys())
    tags = [{key: own for key, own in one.__argument_tags__.items() if own} for one in (old, new)]
    is_one_call = fdl.get_callable(old) is fdl.get_callable(new)
    return (
        is_one_call
        and tags[0] == tags[1]
        and set_arguments(old).keys() == set_arguments(new).keys()
    )


def _pairs(old: Any, new: Any) -> list[tuple[Any, Any]]:
    """What two values hold in the same places."""
    if isinstance(old, fdl.Buildable):
        old, new = set_arguments(old), set_arguments(new)
    if isinstance(old, dict):
        return [(value, new[key]) for key, value in old.items()]
    return list(zip(old, new, strict=True))


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


Planned = tuple[ParameterRef, Any]  # a place and what it shall hold; fdl.NO_VALUE to take it away


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
