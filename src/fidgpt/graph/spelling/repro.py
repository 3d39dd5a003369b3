"""The fewest directives that make a graph again from the nearest graph that has a name."""

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fidgpt import graph  # for what it loads late
from fidgpt.graph.binding.bind import resolve
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.spelling.nearness import Frame, frame_of, least_apart
from fidgpt.graph.structure.walk import parts

if TYPE_CHECKING:
    from fidgpt.graph.difference.changes import Change

Compose = Callable[[Sequence[str]], Any]
_MOST_FIDDLERS = 4
_ROUNDS = 4  # a part that is put shows what is still to be said inside of it
_MOST_TRIED = 60
_LARGE = 2000  # parts, past which trying every fiddler would take too long
_NOTHING: Mapping[str, Frame] = {}


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
    frames: Mapping[str, Frame] = _NOTHING,
    fiddlers: Iterable[str] = (),
    known: Sequence[str] = (),
    part_name: Callable[[Any], str] = attrgetter("__qualname__"),
) -> Repro:
    """The directives that make `root` from the base that is nearest to it, found by trying.

    Args:
      root: the graph.
      bases: graphs to begin with, by the directive that makes each.
      compose: makes the graph of some directives.
      frames: what is known of bases, as `nearest` takes it.
      fiddlers: directives to try for what they save, such as `fiddler:use_gelu`.
      known: directives that may have made it, of which some may not be needed.
      part_name: how a directive calls a constructor.

    Returns:
      As few directives as were found, each of them needed, checked by making the graph.

    Raises:
      ConfigError: a graph cannot be bound, or holds what has no name.
    """
    search = _Search(root, compose, part_name)
    found: list[list[str]] = []
    if known and search.is_same(list(known)):
        found.append(search.without_needless(list(known)))
    first = nearest(root, bases, frames)
    if not found or found[0][0] != first or len(found[0]) > 2:  # fewer there are not
        tried = list(fiddlers) if len(parts(root)) <= _LARGE else []
        found = search.ways([first], tried) + found
    said = min(found, key=search.price)
    return Repro(said, search.left(said) or [], search.is_same(said))


def nearest(root: Any, bases: Mapping[str, Any], frames: Mapping[str, Frame] = _NOTHING) -> str:
    """The name of the graph that differs least from `root`; of several, the first.

    A graph that cannot be made or bound is passed over.

    Args:
      root: the graph.
      bases: graphs by name, which may be made when they are asked for.
      frames: frames of some of them, so that those far away need not be made.

    Raises:
      ConfigError: there is no graph to choose, or `root` cannot be bound.
    """
    from fidgpt.graph.spelling.sayable import distance  # late, as it knows all kinds of changes

    resolve(root)
    frame = frame_of(root)
    least: dict[str, int] = {}
    for name in bases:
        with contextlib.suppress(ConfigError):
            known = frames[name] if name in frames else frame_of(bases[name])
            least[name] = least_apart(known, frame)
    distances: dict[str, int] = {}
    for name in sorted(least, key=lambda one: least[one]):
        if least[name] > min(distances.values(), default=math.inf):
            break  # this one is farther away, and so are all that follow
        with contextlib.suppress(ConfigError):
            distances[name] = distance(graph.diff(bases[name], root))
    if not distances:
        raise ConfigError("there is no config to begin with.")
    return min((name for name in bases if name in distances), key=lambda name: distances[name])


class _Search:
    """Tries directives on the way to a graph."""

    def __init__(self, root: Any, compose: Compose, part_name: Callable[[Any], str]) -> None:
        self._root = root
        self._part_name = part_name
        self._compose = compose
        self._wanted = graph.fingerprint(root)
        self._frame = frame_of(root)
        self._made: dict[tuple[str, ...], Any] = {}
        self._known: dict[tuple[str, ...], list[Change] | None] = {}

    def ways(self, first: list[str], fiddlers: list[str]) -> list[list[str]]:
        """Lists of directives that make the graph, or come near it, in the order of the search.

        Fiddlers come first, or where a fiddler goes by what was set before it, after that. Only
        where neither makes the graph, lists with parts in them are written out.
        """
        ways = [self.with_words(self.with_fiddlers(first, fiddlers, saves=2))]
        if not self.is_same(ways[0]):
            begun = (ways[0], self.with_words(first))
            ways += [self.with_more(said, fiddlers) for said in begun]
        if not any(map(self.is_same, ways)):
            ways += [self.with_words(way, lists=True) for way in (*ways, first)]
        return [self.without_needless(way) for way in ways]

    def price(self, said: list[str]) -> tuple[bool, float, int]:
        """By which the best way is found: the least."""
        return not self.is_same(said), self._count(said), len(said)

    def left(self, said: list[str]) -> "list[Change] | None":
        """The differences that remain; None where the directives make no graph."""
        key = tuple(said)
        if key not in self._known:
            try:
                self._known[key] = graph.diff(self._graph(said), self._root)
            except ConfigError:
                self._known[key] = None
        return self._known[key]

    def is_same(self, said: list[str]) -> bool:
        try:
            return not self.left(said) and graph.fingerprint(self._graph(said)) == self._wanted
        except ConfigError:
            return False

    def with_fiddlers(self, said: list[str], fiddlers: list[str], *, saves: int) -> list[str]:
        """Adds the fiddler that saves most, as long as one `saves` so much at least."""
        now = self._count(said)
        for _ in range(_MOST_FIDDLERS):
            if now < saves:
                break
            best = self._best([[*said, one] for one in fiddlers if one not in said], now - saves)
            if best is None:
                break
            said, now = best, self._count(best)
        return said

    def _best(self, ways: list[list[str]], most: float) -> list[str] | None:
        """The first of the ways after which least differs; None where that is more than `most`."""
        least = [self._least(way) for way in ways]
        counts: dict[int, float] = {}
        for i in sorted(range(len(ways)), key=lambda i: least[i]):
            if least[i] > min([most, *counts.values()]):
                break  # nor can those that follow be better
            counts[i] = self._count(ways[i])
        best = min(sorted(counts), key=lambda i: counts[i], default=None)
        return None if best is None or counts[best] > most else ways[best]

    def _least(self, said: list[str]) -> float:
        """What `_count` gives at least."""
        try:
            return least_apart(frame_of(self._graph(said)), self._frame)
        except ConfigError:
            return math.inf

    def with_words(self, said: list[str], *, lists: bool = False) -> list[str]:
        """Adds what the differences say, as long as that leaves fewer."""
        from fidgpt.graph.spelling.sayable import words  # late, as it knows all kinds of changes

        left = self.left(said)
        for _ in range(_ROUNDS):
            if not left:
                break
            groups = words(
                self._compose(said), self._root, left, part_name=self._part_name, lists=lists
            )
            tried = self._said(said, groups)
            now = self.left(tried)
            if now is None or tried == said or str(now) == str(left):
                break
            said, left = tried, now
        return said

    def with_more(self, said: list[str], fiddlers: list[str]) -> list[str]:
        """Adds fiddlers and what they leave to be said, in turn."""
        for _ in range(_ROUNDS):
            more = self.with_words(self.with_fiddlers(said, fiddlers, saves=1))
            if more == said or self._count(more) >= self._count(said):
                break
            said = more
        return said

    def without_needless(self, said: list[str]) -> list[str]:
        """Leaves out each directive that the others imply, where there are not too many to try."""
        if len(said) > _MOST_TRIED:
            return said
        is_same = self.is_same(said)
        count = self._count(said)
        for i in range(len(said) - 1, 0, -1):
            fewer = [*said[:i], *said[i + 1 :]]
            if self.is_same(fewer) if is_same else self._count(fewer) <= count:
                said, count = fewer, self._count(fewer)
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

    def _graph(self, said: list[str]) -> Any:
        """The graph that directives make, which is made once."""
        key = tuple(said)
        if key not in self._made:
            self._made[key] = self._compose(said)
        return self._made[key]

    def _count(self, said: list[str]) -> float:
        from fidgpt.graph.spelling.sayable import price

        left = self.left(said)
        return math.inf if left is None else sum(map(price, left))
