"""From what the axes chose to a point: its directives, its graph, its identity and its name."""

from collections.abc import Sequence

import fiddle as fdl

from fidgpt.cli.catalogue.catalogue import Catalogue
from fidgpt.sweep.points.axes import Axis, Choice, Item
from fidgpt.sweep.points.composing import Composer, Draft
from fidgpt.sweep.points.dry_runs import DryRuns
from fidgpt.sweep.points.naming import Names
from fidgpt.sweep.points.point import Point


class Maker:
    """Makes the points of some axes; fast where each is asked for beside those that resemble it.

    Args:
      items: directives, and axes in the places where theirs belong among them.
      catalogue: what has a name.

    Attributes:
      items: as they were given.
      axes: those among them.
      labels: the names of the axes.
    """

    def __init__(self, items: Sequence[Item], catalogue: Catalogue) -> None:
        self.items = items
        self.axes = [item for item in items if isinstance(item, Axis)]
        self._names = Names(self.axes)
        self.labels = self._names.labels
        self._composer = Composer(catalogue)
        self._dry_runs = DryRuns()

    def draft(self, chosen: Sequence[Choice]) -> Draft:
        """The graph of a choice of each axis, not to be changed, and all that is wrong with it."""
        return self._composer.compose(self._directives(chosen))

    def point(self, chosen: Sequence[Choice], graph: fdl.Config) -> Point:
        """The point of a choice of each axis, whose graph is this one.

        Raises:
          ConfigError, StartError: it cannot be trained.
        """
        identity, cost, bound = self._dry_runs.of(graph)
        return Point(
            self._directives(chosen),
            varied(chosen),
            identity,
            self._names.name(chosen, bound),
            cost,
            self._names.values(chosen, bound),
        )

    def _directives(self, chosen: Sequence[Choice]) -> tuple[str, ...]:
        choices = iter(chosen)
        return tuple(
            directive
            for item in self.items
            for directive in (next(choices).directives if isinstance(item, Axis) else (item,))
        )


def varied(chosen: Sequence[Choice]) -> tuple[str, ...]:
    """The directives that axes chose."""
    return tuple(directive for choice in chosen for directive in choice.directives)
