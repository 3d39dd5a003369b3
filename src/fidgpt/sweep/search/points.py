"""Points of choices: the directives of a search with a value in the place of each space."""

from collections.abc import Mapping, Sequence
from typing import Any

import fiddle as fdl

from fidgpt.cli.catalogue.catalogue import Catalogue
from fidgpt.graph.errors import raise_all
from fidgpt.sweep.points.axes import Choice
from fidgpt.sweep.points.making import Maker
from fidgpt.sweep.points.moves import moves, overwritten, samples_of
from fidgpt.sweep.points.point import Point
from fidgpt.sweep.search.space import Space


class Points:
    """Makes the points of a search.

    Args:
      items: directives, and spaces in the places where theirs belong among them.
      catalogue: what has a name.

    Attributes:
      spaces: those among the items.
      items: with each space as the axis of its two ends.
    """

    def __init__(self, items: Sequence[str | Space], catalogue: Catalogue) -> None:
        self.spaces = [item for item in items if isinstance(item, Space)]
        self.items = [item.axis() if isinstance(item, Space) else item for item in items]
        self._catalogue = catalogue
        self._maker = Maker(self.items, catalogue)

    def check(self) -> fdl.Config:
        """The graph of a point, after a look for what would be wrong with all of them.

        Raises:
          ConfigErrors: a directive is wrong, or overwrites what a space chooses.
        """
        graph = self._graph(self._at_end(0))
        raise_all(overwritten(list(samples_of(self.items, self._catalogue))))
        return graph

    def moves(self) -> list[str]:
        """A line for each space: how many parameters it moves."""
        return moves(list(samples_of(self.items, self._catalogue)), self._maker.axes)

    def of(self, values: Mapping[str, Any]) -> Point:
        """The point of some values, by the names of their spaces.

        Raises:
          ConfigError, StartError: it does not check.
        """
        return self._point([space.choice(values[space.name]) for space in self.spaces])

    def first(self) -> Point:
        """The point of all first values.

        Raises:
          ConfigError, StartError: it does not check.
        """
        return self._point(self._at_end(0))

    def ends(self) -> tuple[fdl.Config, fdl.Config]:
        """The graphs of all first values, and of all last ones.

        Raises:
          ConfigErrors: a directive is wrong.
        """
        return self._graph(self._at_end(0)), self._graph(self._at_end(-1))

    def num_steps(self) -> int | None:
        """How long a point is trained; None where the first one does not check."""
        try:
            return self.first().cost.num_steps
        except ValueError:
            return None

    def _point(self, chosen: Sequence[Choice]) -> Point:
        return self._maker.point(chosen, self._graph(chosen))

    def _at_end(self, end: int) -> list[Choice]:
        return [axis.choices[end] for axis in self._maker.axes]

    def _graph(self, chosen: Sequence[Choice]) -> fdl.Config:
        draft = self._maker.draft(chosen)
        raise_all(list(draft.mistakes))
        assert draft.root is not None  # or there was a mistake
        return draft.root
