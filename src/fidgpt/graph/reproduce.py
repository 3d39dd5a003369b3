"""The shortest directives that reproduce a graph."""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fidgpt.graph.binding import resolve
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.spelling import Frame, frame_of, least_apart
from fidgpt.graph.storage.bound import BoundGraph
from fidgpt.graph.walk import parts

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
        self.root = root
        self._compose = compose
        self._target = BoundGraph(root)
        self._fingerprint = self._target.fingerprint()
        self._frame = frame_of(root)
        self._left: dict[tuple[str, ...], list[Change] | None] = {}
        self._least: dict[tuple[str, ...], float] = {}
        self._same: dict[tuple[str, ...], bool] = {}

    def graph(self, directives: Sequence[str]) -> Any:
        """The graph that directives make.

        Raises:
          ConfigError: they make none.
        """
        return self._compose(directives)

    def can_be_made(self, directives: Sequence[str]) -> bool:
        """Whether directives make a graph that can be bound."""
        try:
            resolve(self.graph(directives))
        except ConfigError:
            return False
        return True

    def left(self, directives: Sequence[str]) -> "list[Change] | None":
        """The differences that remain; None where the directives make no graph."""
        key = tuple(directives)
        if key not in self._left:
            from fidgpt.graph.difference.comparison import diff  # late: loaded only for this

            try:
                self._left[key] = list(diff(self.graph(directives), self._target))
            except ConfigError:
                self._left[key] = None
        return self._left[key]

    def count(self, directives: Sequence[str]) -> float:
        """How much remains, in differences, of which some count more than others."""
        from fidgpt.graph.spelling import price  # late, as it knows all kinds of changes

        left = self.left(directives)
        return math.inf if left is None else sum(map(price, left))

    def at_least(self, directives: Sequence[str]) -> float:
        """A lower bound of `count`, found in a fraction of its time."""
        key = tuple(directives)
        if key not in self._least:
            try:
                self._least[key] = least_apart(frame_of(self.graph(directives)), self._frame)
            except ConfigError:
                self._least[key] = math.inf
        return self._least[key]

    def is_same(self, directives: Sequence[str]) -> bool:
        """Whether directives make the very graph."""
        key = tuple(directives)
        if key not in self._same:
            self._same[key] = self.at_least(directives) == 0 and self._has_its_fingerprint(
                directives
            )
        return self._same[key]

    def _has_its_fingerprint(self, directives: Sequence[str]) -> bool:
        try:
            return BoundGraph(self.graph(directives)).fingerprint() == self._fingerprint
        except ConfigError:
            return False


_KEY = re.compile(r"\[[^\]]*\]")
_STEP = re.compile(r"\.|\[")


@dataclass(frozen=True, slots=True)
class Region:
    """Places of a graph.

    Attributes:
      places: their paths, without which item of a list is meant.
      around: those of what holds them.
    """

    places: frozenset[str]
    around: frozenset[str]

    def meets(self, other: "Region") -> bool:
        """Whether a place of one is one of the other, lies in it, or holds it."""
        shared = self.places & (other.places | other.around)
        return bool(shared or self.around & other.places)


NOWHERE = Region(frozenset(), frozenset())


def region_of(changes: "Iterable[Change]") -> Region:
    """Return the places that changes name."""
    found: set[str | None] = set()
    for change in changes:
        found |= {change.path, *getattr(change, "inherited_by", ())}
        for side in (change.old, change.new):
            found |= {side.path, side.shared_with}
    places = frozenset(_KEY.sub("[*]", path) for path in found if path)
    around = frozenset(path[: cut.start()] for path in places for cut in _STEP.finditer(path))
    return Region(places, around)


_MOST = 4


class Helpful:
    """Chooses among fiddlers.

    What a fiddler changes is remembered, by place: where none of it is a place that differs, it
    is not tried again; and as long as no other fiddler changed any of it, it saves what it did.
    """

    def __init__(self, fiddlers: Iterable[str], attempts: Attempts) -> None:
        self._fiddlers = list(fiddlers)
        self._attempts = attempts
        self._regions: dict[str, Region] = {}

    def added(self, directives: list[str], *, saves: int) -> list[str]:
        """Directives with the fiddler that saves most, and the next, while one `saves` so much."""
        saved: dict[str, float] = {}
        for _ in range(_MOST):
            best = self._best(directives, saved, saves)
            if best is None:
                break
            directives = [*directives, best]
            changed = self._regions[best]
            saved = {
                one: much for one, much in saved.items() if not self._regions[one].meets(changed)
            }
        return directives

    def _best(self, directives: list[str], saved: dict[str, float], saves: float) -> str | None:
        """The first of those that save most; None where none saves enough.

        Args:
          directives: directives.
          saved: what fiddlers are known to save; those that are tried are added.
          saves: what is enough.
        """
        now = self._attempts.count(directives)
        if now < saves:
            return None
        hopes = {one: self._hope(one, directives, now, saved) for one in self._fiddlers}
        best: str | None = None
        for one in sorted(hopes, key=lambda one: -hopes[one]):
            if hopes[one] < saves:
                break
            much = self._saved(one, directives, now, saved)
            if much > saves or (much == saves and self._is_earlier(one, best)):
                best, saves = one, much
        return best

    def _is_earlier(self, one: str, other: str | None) -> bool:
        return other is None or self._fiddlers.index(one) < self._fiddlers.index(other)

    def _hope(self, one: str, directives: list[str], now: float, saved: dict[str, float]) -> float:
        """What a fiddler saves at most."""
        if one in directives:
            return 0
        if one in saved:
            return saved[one]
        region = self._regions.get(one, NOWHERE)
        if region.places and not region.meets(region_of(self._attempts.left(directives) or ())):
            return 0
        return now - self._attempts.at_least([*directives, one])

    def _saved(self, one: str, directives: list[str], now: float, saved: dict[str, float]) -> float:
        """What a fiddler saves; what it changes is remembered."""
        if one not in saved:
            more = [*directives, one]
            saved[one] = now - self._attempts.count(more)
            known, found = self._regions.get(one, NOWHERE), self._changed(directives, more)
            self._regions[one] = Region(known.places | found.places, known.around | found.around)
        return saved[one]

    def _changed(self, directives: list[str], more: list[str]) -> Region:
        """The places at which more directives change how a graph differs from the wanted one."""
        before, after = (
            {str(one): one for one in self._attempts.left(way) or ()} for way in (directives, more)
        )
        return region_of({**before, **after}[text] for text in before.keys() ^ after.keys())


_ROUNDS = 4  # a part that is put shows what is still to be directives inside of it
_MOST_TRIED = 60


class Search:
    """Looks for the fewest directives that make a graph."""

    def __init__(
        self, attempts: Attempts, fiddlers: Iterable[str], part_name: Callable[[Any], str]
    ) -> None:
        """Begins a search.

        Args:
          attempts: what comes of directives.
          fiddlers: directives to try for what they save.
          part_name: how a directive calls a constructor.
        """
        self._attempts = attempts
        self._helpful = Helpful(fiddlers, attempts)
        self._part_name = part_name

    def ways(self, first: list[str]) -> list[list[str]]:
        """Lists of directives that make the graph, or come near it, in the order of the search.

        Fiddlers come first, or where a fiddler goes by what was set before it, after that. Only
        where neither makes the graph, lists with parts in them are written out.
        """
        ways = [self._with_words(self._helpful.added(first, saves=2))]
        if not self._attempts.is_same(ways[0]):
            begun = (ways[0], self._with_words(first))
            ways += [self._with_more(directives) for directives in begun]
        if not any(map(self._attempts.is_same, ways)):
            ways += [self._with_words(way, lists=True) for way in (*ways, first)]
        return [self.without_needless(way) for way in self._nearest(ways)]

    def price(self, directives: list[str]) -> tuple[bool, float, int]:
        """By which the best way is found: the least."""
        return (
            not self._attempts.is_same(directives),
            self._attempts.count(directives),
            len(directives),
        )

    def without_needless(self, directives: list[str]) -> list[str]:
        """Leaves out each directive that the others imply, where there are not too many to try."""
        if len(directives) > _MOST_TRIED:
            return directives
        is_same = self._attempts.is_same(directives)
        for i in range(len(directives) - 1, 0, -1):
            fewer = [*directives[:i], *directives[i + 1 :]]
            if self._attempts.is_same(fewer) if is_same else self._is_as_near(fewer, directives):
                directives = fewer
        return directives

    def _is_as_near(self, directives: list[str], other: list[str]) -> bool:
        count = self._attempts.count(other)
        return (
            self._attempts.at_least(directives) <= count
            and self._attempts.count(directives) <= count
        )

    def _nearest(self, ways: list[list[str]]) -> list[list[str]]:
        """The ways that make the graph, each once; where none does, those that come nearest."""
        distances = [self.price(way)[:2] for way in ways]
        near = [way for way, far in zip(ways, distances, strict=True) if far == min(distances)]
        return [way for i, way in enumerate(near) if way not in near[:i]]

    def _with_words(self, directives: list[str], *, lists: bool = False) -> list[str]:
        """Adds what the differences say, as long as that leaves fewer."""
        from fidgpt.graph.spelling import words  # late, as it knows all kinds of changes

        left = self._attempts.left(directives)
        for _ in range(_ROUNDS):
            if not left:
                break
            root, name = self._attempts.graph(directives), self._part_name
            groups = words(root, self._attempts.root, left, part_name=name, lists=lists)
            tried = self._add_groups(directives, groups)
            now = self._attempts.left(tried)
            if now is None or tried == directives or str(now) == str(left):
                break
            directives, left = tried, now
        return directives

    def _with_more(self, directives: list[str]) -> list[str]:
        """Add fiddlers, and directives for the differences that they leave, in turn."""
        for _ in range(_ROUNDS):
            more = self._with_words(self._helpful.added(directives, saves=1))
            if more == directives or self._attempts.count(more) >= self._attempts.count(directives):
                break
            directives = more
        return directives

    def _add_groups(self, directives: list[str], groups: list[list[str]]) -> list[str]:
        """The directives with one of each group, or all of a group, as far as they can be done."""
        whole = [*directives, *(group[0] for group in groups)]
        if self._attempts.can_be_made(whole):
            return whole
        for group in groups:
            for more in (group[:1], group[1:]):
                if more and self._attempts.can_be_made([*directives, *more]):
                    directives = [*directives, *more]
                    break
        return directives


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
    attempts = Attempts(root, compose)
    tried = fiddlers if len(parts(root)) <= _LARGE else ()
    search = Search(attempts, tried, part_name)
    found: list[list[str]] = []
    if known and attempts.is_same(list(known)):
        found.append(search.without_needless(list(known)))
    first = nearest(root, bases, frames)
    if not found or found[0][0] != first or len(found[0]) > 2:  # fewer there are not
        found = search.ways([first]) + found
    directives = min(found, key=search.price)
    return Repro(directives, attempts.left(directives) or [], attempts.is_same(directives))


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
    from fidgpt.graph.difference.comparison import (
        diff,  # late: differences are loaded only for this
    )
    from fidgpt.graph.spelling import distance

    resolve(root)
    frame, target = frame_of(root), BoundGraph(root)
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
            distances[name] = distance(diff(bases[name], target))
    if not distances:
        raise ConfigError("there is no config to begin with.")
    return min((name for name in bases if name in distances), key=lambda name: distances[name])
