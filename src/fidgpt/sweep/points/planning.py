"""From axes to points: all composed, bound and checked, before any of them may start."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from fidgpt.cli.catalogue.catalogue import own_catalogue
from fidgpt.collection import without_collection
from fidgpt.graph import ConfigError
from fidgpt.graph.errors import raise_all
from fidgpt.model import StartError
from fidgpt.sweep.points.axes import Choice, Item
from fidgpt.sweep.points.making import Maker, varied
from fidgpt.sweep.points.moves import moves, overwritten, samples_of, vain
from fidgpt.sweep.points.point import Point


@dataclass(frozen=True)
class Plan:
    """The points of a sweep, in the order of its axes.

    Attributes:
      points: each fingerprint once.
      labels: the names of the axes.
      num_folded: combinations that make the same run as an earlier one.
      moves: a line for each directive that varies: how many parameters it moves.
    """

    points: list[Point]
    labels: list[str]
    num_folded: int
    moves: list[str]


def plan(items: Sequence[Item], *, allowed: tuple[str, ...] = ()) -> Plan:
    """The points of a sweep.

    Args:
      items: directives, and axes in the places where theirs belong among them; axes multiply.
      allowed: packages of the user's own whose callables a config may name.

    Raises:
      ConfigErrors: some points are wrong, and all of them are named; or an axis changes nothing,
        or a directive overwrites what one chose.
    """
    with without_collection():
        return _Planning(items, allowed).plan()


class _Planning:
    """The work of planning, as far as it is."""

    def __init__(self, items: Sequence[Item], allowed: tuple[str, ...]) -> None:
        self._catalogue = own_catalogue(allowed)
        self._maker = Maker(items, self._catalogue)
        self._points: dict[str, Point] = {}
        self._identities: dict[tuple[int, ...], str] = {}
        # By message, the points that it holds for; none where it names a directive itself.
        self._mistakes: dict[str, list[str]] = {}

    def plan(self) -> Plan:
        items, axes = self._maker.items, self._maker.axes
        for numbers in itertools.product(*(range(len(axis.choices)) for axis in axes)):
            self._add(numbers, [axis.choices[i] for axis, i in zip(axes, numbers, strict=True)])
        raise_all([_told(message, points) for message, points in self._mistakes.items()])
        samples = list(samples_of(items, self._catalogue))
        raise_all(overwritten(samples) or vain(axes, self._identities))  # one may come of the other
        points = list(self._points.values())
        folded = len(self._identities) - len(points)
        return Plan(points, self._maker.labels, folded, moves(samples, axes))

    def _add(self, numbers: tuple[int, ...], chosen: Sequence[Choice]) -> None:
        draft = self._maker.draft(chosen)
        if draft.mistakes or draft.root is None:
            self._mistakes.setdefault("\n\n".join(draft.mistakes), [])
            return
        try:
            point = self._maker.point(chosen, draft.root)
        except (ConfigError, StartError) as error:
            self._mistakes.setdefault(str(error), []).append(" ".join(varied(chosen)))
            return
        self._identities[numbers] = point.fingerprint
        self._points.setdefault(point.fingerprint, point)


def _told(message: str, points: list[str]) -> str:
    """A mistake, below all the points that make it."""
    indented = message.replace("\n", "\n  ")
    return "".join(f"{point}:\n" for point in points) + (f"  {indented}" if points else message)
