"""The differences of two graphs as plain data, each at the rows that it is about."""

from typing import Any

from fidgpt.graph.difference.changes import Change
from fidgpt.graph.difference.diff import diff
from fidgpt.graph.page.graph import Graph, Place


def changes(old: tuple[Any, Graph], new: tuple[Any, Graph]) -> list[dict[str, Any]]:
    """Every difference, with the place in each graph; no place where a graph has none.

    Raises:
      ConfigErrors: a graph cannot be bound.
    """
    places = old[1].places(), new[1].places()
    return [_described(change, *places) for change in diff(old[0], new[0])]


def _described(change: Change, old: dict[str, Place], new: dict[str, Place]) -> dict[str, Any]:
    sides = {"old": _place(change.old.path, old), "new": _place(change.new.path, new)}
    return {
        "kind": type(change).__name__,
        "sign": change.sign,
        "path": change.path or "the root",
        "detail": change.detail,
        **{name: place for name, place in sides.items() if place is not None},
    }


def _place(path: str | None, places: dict[str, Place]) -> Place | None:
    if path == "":
        return 0, -1  # the root stands in no row
    return None if path is None else places.get(path)
