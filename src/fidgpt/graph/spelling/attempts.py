"""What comes of lists of directives that are tried on the way to a graph."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fidgpt.graph.binding.bind import resolve
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.spelling.nearness import frame_of, least_apart
from fidgpt.graph.storage.fingerprint import fingerprint

if TYPE_CHECKING:
    from fidgpt.graph.difference.changes import Change

Compose = Callable[[Sequence[str]], Any]


class Attempts:
    """How near lists of directives come to a graph; each is compared with it but once.

    Attributes:
      root: the graph.
    """

    def __init__(self, root: Any, compose: Compose) -> None:
        """Begins with no attempt.

        Args:
          root: the graph.
          compose: makes the graph of some directives.

        Raises:
          ConfigError: the graph cannot be bound, or holds what has no name.
        """
        from fidgpt.graph.difference.diff import Target  # late: it is loaded only for this

        self.root = root
        self._compose = compose
        self._target = Target(root)
        self._fingerprint = fingerprint(root)
        self._frame = frame_of(root)
        self._left: dict[tuple[str, ...], list[Change] | None] = {}
        self._least: dict[tuple[str, ...], float] = {}
        self._same: dict[tuple[str, ...], bool] = {}

    def graph(self, said: Sequence[str]) -> Any:
        """The graph that directives make.

        Raises:
          ConfigError: they make none.
        """
        return self._compose(said)

    def can_be_made(self, said: Sequence[str]) -> bool:
        """Whether directives make a graph that can be bound."""
        try:
            resolve(self.graph(said))
        except ConfigError:
            return False
        return True

    def left(self, said: Sequence[str]) -> "list[Change] | None":
        """The differences that remain; None where the directives make no graph."""
        key = tuple(said)
        if key not in self._left:
            try:
                self._left[key] = list(self._target.since(self.graph(said)))
            except ConfigError:
                self._left[key] = None
        return self._left[key]

    def count(self, said: Sequence[str]) -> float:
        """How much remains, in differences, of which some count more than others."""
        from fidgpt.graph.spelling.sayable import price  # late, as it knows all kinds of changes

        left = self.left(said)
        return math.inf if left is None else sum(map(price, left))

    def at_least(self, said: Sequence[str]) -> float:
        """What `count` does not stay below, told in a fraction of its time."""
        key = tuple(said)
        if key not in self._least:
            try:
                self._least[key] = least_apart(frame_of(self.graph(said)), self._frame)
            except ConfigError:
                self._least[key] = math.inf
        return self._least[key]

    def is_same(self, said: Sequence[str]) -> bool:
        """Whether directives make the very graph."""
        key = tuple(said)
        if key not in self._same:
            self._same[key] = self.at_least(said) == 0 and self._has_its_fingerprint(said)
        return self._same[key]

    def _has_its_fingerprint(self, said: Sequence[str]) -> bool:
        try:
            return fingerprint(self.graph(said)) == self._fingerprint
        except ConfigError:
            return False
