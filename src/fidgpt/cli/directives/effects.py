"""What came of directives: the graph that they made, and what each of them changed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import fiddle as fdl

from fidgpt.graph.edits import Edit
from fidgpt.graph.history.speaker import Speaker

if TYPE_CHECKING:
    from fidgpt.graph import Side


Rerun = Callable[[Callable[[Any], Any]], Any]


class Effect:
    """One directive and what it changed.

    Attributes:
      number: which one it was, counted from 1; 0 for a base that nobody named.
      directive: its text.
      rerun: of code, such as a fiddler: what it makes of the graph that it was given, once a
        function has changed a copy of that.
    """

    def __init__(
        self,
        number: int,
        directive: str,
        edits: Callable[[], list[Edit]],
        rerun: Rerun | None = None,
    ) -> None:
        self.number = number
        self.directive = directive
        self.rerun = rerun
        self._found = edits

    @cached_property
    def edits(self) -> list[Edit]:
        """Every place that it changed; none where it made the graph, or changed nothing.

        Of code, such as a fiddler, they are found by comparing, when first asked for.

        Raises:
          ConfigErrors: the graph before or after could not be compared, as it cannot be bound.
        """
        return self._found()

    @property
    def speaker(self) -> Speaker:
        """On whose behalf its assignments were recorded."""
        return speaker(self.number, self.directive)

    def __repr__(self) -> str:
        return f"Effect({self.number}, {self.directive!r})"


def speaker(number: int, directive: str) -> Speaker:
    """A directive as who says what it assigns."""
    return Speaker(directive, "directive", number)


@dataclass(frozen=True)
class Composed:
    """A graph and the directives that made it, in order."""

    root: fdl.Config
    effects: list[Effect]


def edits_between(before: Any, after: Any) -> list[Edit]:
    """The differences of two graphs as edits, one for each place.

    Where only tags differ, the values of an edit are alike.

    Raises:
      ConfigErrors: one of the graphs cannot be bound.
    """
    from fidgpt.graph import TagsChanged, diff  # late: most directives know what they change

    edits: dict[str, Edit] = {}
    for change in diff(before, after):
        if not (isinstance(change, TagsChanged) and change.path in edits):
            edits[change.path] = Edit(change.path, _set_in(change.old), _set_in(change.new))
    return list(edits.values())


def _set_in(side: "Side") -> Any:
    return fdl.NO_VALUE if side.is_default else side.value
