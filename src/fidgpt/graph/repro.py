"""The fewest directives that make a graph again from the nearest graph that has a name."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fidgpt import graph  # for what it loads late
from fidgpt.graph.bind import resolve
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.walk import parts

if TYPE_CHECKING:
    from fidgpt.graph.difference.changes import Change

Compose = Callable[[Sequence[str]], Any]
_MOST_FIDDLERS = 4
_ROUNDS = 4  # a part that is put shows what is still to be said inside of it
_MOST_TRIED = 60
_LARGE = 2000  # parts, past which trying every fiddler would take too long


@dataclass(frozen=True, slots=True)
class Repro:
    """How to make a graph again.

    Attributes:
      directives: in order; the first one names the graph to begin with.
      left: the differences that no directive can make; with none, the graph is the very same.
      is_same: whether the fingerprints agree.
    """

    directives: list[str]
    left: "list[Change]"
    is_same: bool


def repro(
    root: Any,
    bases: Mapping[str, Any],
    *,
    compose: Compose,
    fiddlers: Iterable[str] = (),
    part_name: Callable[[Any], str] = attrgetter("__qualname__"),
) -> Repro:
    """The directives that make `root` from the base that is nearest to it, found by trying.

    Args:
      root: the graph.
      bases: graphs to begin with, by the directive that makes each.
      compose: makes the graph of some directives.
      fiddlers: directives to try for what they save, such as `fiddler:use_gelu`.
      part_name: how a directive calls a constructor.

    Returns:
      As few directives as were found, each of them needed, checked by making the graph.

    Raises:
      ConfigError: a graph cannot be bound, or holds what has no name.
    """
    search = _Search(root, compose, part_name)
    said = [nearest(root, bases)]
    if len(parts(root)) <= _LARGE:
        said = search.with_fiddlers(said, list(fiddlers))
    said = search.without_needless(search.with_words(said))
    left = search.left(said)
    return Repro(said, left or [], search.is_same(said))


def nearest(root: Any, bases: Mapping[str, Any]) -> str:
    """The name of the graph that differs least from `root`; of several, the first.

    A graph that cannot be bound is passed over.

    Raises:
      ConfigError: there is no graph to choose, or `root` cannot be bound.
    """
    resolve(root)
    distances: dict[str, int] = {}
    for name, base in bases.items():
        with contextlib.suppress(ConfigError):
            distances[name] = len(graph.diff(base, root))
    if not distances:
        raise ConfigError("there is no config to begin with.")
    return min(distances, key=lambda name: distances[name])


class _Search:
    """Tries directives on the way to a graph."""

    def __init__(self, root: Any, compose: Compose, part_name: Callable[[Any], str]) -> None:
        self._root = root
        self._part_name = part_name
        self._compose = compose
        self._wanted = graph.fingerprint(root)

    def left(self, said: list[str]) -> "list[Change] | None":
        """The differences that remain; None where the directives make no graph."""
        try:
            return graph.diff(self._compose(said), self._root)
        except ConfigError:
            return None

    def is_same(self, said: list[str]) -> bool:
        try:
            return graph.fingerprint(self._compose(said)) == self._wanted
        except ConfigError:
            return False

    def with_fiddlers(self, said: list[str], fiddlers: list[str]) -> list[str]:
        """Adds the fiddler that saves most, as long as one saves more than it costs."""
        now = self._count(said)
        for _ in range(_MOST_FIDDLERS):
            if now < 2:
                break
            counts = {one: self._count([*said, one]) for one in fiddlers if one not in said}
            best = min(counts, key=lambda one: counts[one], default=None)
            if best is None or counts[best] > now - 2:
                break
            said, now = [*said, best], counts[best]
        return said

    def with_words(self, said: list[str]) -> list[str]:
        """Adds what the differences say, as long as that leaves fewer."""
        from fidgpt.graph.sayable import words  # late, as it knows all kinds of changes

        left = self.left(said)
        for _ in range(_ROUNDS):
            if not left:
                break
            groups = words(self._compose(said), self._root, left, part_name=self._part_name)
            tried = self._said(said, groups)
            now = self.left(tried)
            if now is None or tried == said or str(now) == str(left):
                break
            said, left = tried, now
        return said

    def without_needless(self, said: list[str]) -> list[str]:
        """Leaves out each directive that the others imply, where there are not too many to try."""
        if len(said) > _MOST_TRIED:
            return said
        is_same = self.is_same(said)
        count = self._count(said)
        for one in said[1:][::-1]:
            fewer = [other for other in said if other is not one]
            if self.is_same(fewer) if is_same else self._count(fewer) <= count:
                said = fewer
        return said

    def _said(self, said: list[str], groups: list[list[str]]) -> list[str]:
        """The directives with one of each group, or all of a group, as far as they can be done."""
        whole = [*said, *(group[0] for group in groups)]
        if self.left(whole) is not None:
            return whole
        for group in groups:
            for more in (group[:1], group[1:]):
                if more and self.left([*said, *more]) is not None:
                    said = [*said, *more]
                    break
        return said

    def _count(self, said: list[str]) -> float:
        left = self.left(said)
        return float("inf") if left is None else len(left)
