"""Points of choices: the directives of a search with a value in the place of each space."""

from collections.abc import Mapping, Sequence
from typing import Any

from fidgpt.cli.catalogue.catalogue import Catalogue
from fidgpt.graph.errors import raise_all
from fidgpt.sweep.points.axes import Axis, Choice
from fidgpt.sweep.points.composing import Composer, Draft
from fidgpt.sweep.points.moves import moves, overwritten, samples_of
from fidgpt.sweep.points.naming import Names
from fidgpt.sweep.points.planning import directives_of
from fidgpt.sweep.points.point import Point
from fidgpt.sweep.points.trial import Trials
from fidgpt.sweep.search.space import Space


class Points:
    """Makes the points of a search.

    Args:
      items: directives, and spaces in the places where theirs belong among them.
      catalogue: what has a name.
    """

    def __init__(self, items: Sequence[str | Space], catalogue: Catalogue) -> None:
        self.spaces = [item for item in items if isinstance(item, Space)]
        self._items = [item.axis() if isinstance(item, Space) else item for item in items]
        self._axes = [item for item in self._items if isinstance(item, Axis)]
        self._catalogue = catalogue
        self._names = Names(self._axes)
        self._composer = Composer(catalogue)
        self._trials = Trials()

    def check(self) -> Draft:
        """Composes a point, and looks for what would be wrong with all of them.

        Raises:
          ConfigErrors: a directive is wrong, or overwrites what a space chooses.
        """
        draft = self._composer.compose(directives_of(self._items, self._first()))
        raise_all(list(draft.mistakes))
        raise_all(overwritten(list(samples_of(self._items, self._catalogue))))
        return draft

    def moves(self) -> list[str]:
        """A line for each space: how many parameters it moves."""
        return moves(list(samples_of(self._items, self._catalogue)), self._axes)

    def of(self, values: Mapping[str, Any]) -> Point:
        """The point of some values, by the names of their spaces.

        Raises:
          ConfigError, StartError: it does not check.
        """
        chosen = tuple(space.choice(values[space.name]) for space in self.spaces)
        directives = directives_of(self._items, chosen)
        draft = self._composer.compose(directives)
        raise_all(list(draft.mistakes))
        assert draft.root is not None  # or there was a mistake
        identity, cost, bound = self._trials.of(draft.root)
        return Point(
            directives,
            tuple(one for choice in chosen for one in choice.directives),
            identity,
            self._names.name(chosen, bound),
            cost,
            self._names.values(chosen, bound),
        )

    def num_steps(self) -> int | None:
        """How long a point is trained; None where the first one does not check."""
        try:
            return self.of({one.name: one.range.ends()[0] for one in self.spaces}).cost.num_steps
        except ValueError:
            return None

    def _first(self) -> list[Choice]:
        return [axis.choices[0] for axis in self._axes]
