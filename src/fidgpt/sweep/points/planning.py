"""From axes to points: all composed, bound and checked, before any of them may start."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from fidgpt.cli.app import without_collection
from fidgpt.cli.catalogue.catalogue import own_catalogue
from fidgpt.graph import ConfigError
from fidgpt.graph.errors import raise_all
from fidgpt.model import StartError
from fidgpt.sweep.points.axes import Axis, Choice, Item
from fidgpt.sweep.points.composing import Composer
from fidgpt.sweep.points.moves import moves, overwritten, samples_of, vain
from fidgpt.sweep.points.naming import Names
from fidgpt.sweep.points.point import Point
from fidgpt.sweep.points.trial import Trials

_Chosen = tuple[Choice, ...]


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


@dataclass
class _Planning:
    """The work of planning, as far as it is.

    Attributes:
      mistakes: by message, the points that it holds for; none where it names a directive itself.
    """

    items: Sequence[Item]
    allowed: tuple[str, ...]
    points: dict[str, Point] = field(default_factory=dict)
    identities: dict[tuple[int, ...], str] = field(default_factory=dict)
    mistakes: dict[str, list[str]] = field(default_factory=dict)

    def plan(self) -> Plan:
        catalogue = own_catalogue(self.allowed)
        axes = [one for one in self.items if isinstance(one, Axis)]
        self._names, self._trials, self._composer = Names(axes), Trials(), Composer(catalogue)
        for indices in itertools.product(*(range(len(axis.choices)) for axis in axes)):
            chosen = tuple(axis.choices[i] for axis, i in zip(axes, indices, strict=True))
            self._add(indices, chosen)
        raise_all([_told(message, points) for message, points in self.mistakes.items()])
        samples = list(samples_of(self.items, catalogue))
        raise_all(overwritten(samples) or vain(axes, self.identities))  # one may come of the other
        points = list(self.points.values())
        folded = len(self.identities) - len(points)
        return Plan(points, self._names.labels, folded, moves(samples, axes))

    def _add(self, indices: tuple[int, ...], chosen: _Chosen) -> None:
        directives = directives_of(self.items, chosen)
        varied = tuple(one for choice in chosen for one in choice.directives)
        draft = self._composer.compose(directives)
        if draft.mistakes or draft.root is None:
            self.mistakes.setdefault("\n\n".join(draft.mistakes), [])
            return
        try:
            identity, cost, bound = self._trials.of(draft.root)
        except (ConfigError, StartError) as error:
            self.mistakes.setdefault(str(error), []).append(" ".join(varied))
            return
        self.identities[indices] = identity
        if identity not in self.points:
            self.points[identity] = Point(
                directives,
                varied,
                identity,
                self._names.name(chosen, bound),
                cost,
                self._names.values(chosen, bound),
            )


def directives_of(items: Sequence[Item], chosen: Sequence[Choice]) -> tuple[str, ...]:
    """All directives of a point, in order, when its axes chose so."""
    choices = iter(chosen)
    return tuple(
        directive
        for item in items
        for directive in (next(choices).directives if isinstance(item, Axis) else (item,))
    )


def _told(message: str, points: list[str]) -> str:
    """A mistake, below all the points that make it."""
    indented = message.replace("\n", "\n  ")
    return "".join(f"{point}:\n" for point in points) + (f"  {indented}" if points else message)
