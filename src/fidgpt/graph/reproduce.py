"""The shortest directives that reproduce a graph, found by trying."""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.graph import errors, fiddle, formulas, hints, selectors, walk
from fidgpt.graph.bound import BoundGraph
from fidgpt.graph.difference import comparison
from fidgpt.graph.difference.changes import (
    Change,
    PartAdded,
    SharingChanged,
    TagsChanged,
    ValueChanged,
)
from fidgpt.graph.paths import find_parameter
from fidgpt.graph.spelling import PartName, call_text, formula_text, spell


def has_directive(change: Change) -> bool:
    """Whether a directive can make a change, rather than a fiddler or a whole list."""
    return not isinstance(change, TagsChanged) and _list_of(change) is None


def cost(change: Change) -> int:
    """Return the weight of a change: more if only a fiddler, or a whole list, can make it.

    An added node counts with all that is inside, each of which takes a directive.
    """
    least = 1 if has_directive(change) else 3
    is_node = isinstance(change, PartAdded) and not formulas.is_formula(change.new.value)
    return max(least, len(walk.parts(change.new.value))) if is_node else least


def distance(changes: Iterable[Change]) -> int:
    """Return about how many directives make some changes: one sets many parameters to a value."""
    return sum({_gist(change): 1 if has_directive(change) else 3 for change in changes}.values())


def _gist(change: Change) -> tuple[str, ...]:
    if isinstance(change, ValueChanged):
        return re.split(r"[.\]]", change.path)[-1], repr(change.new.value)
    if not has_directive(change):
        return (change.path,)
    new = change.new.value
    call = walk.title(new) if isinstance(new, fdl.Buildable) else repr(new)
    return _all_items(change.path), type(change).__name__, call


def _all_items(path: str) -> str:
    return re.sub(r"\[\d+\]", "[*]", path)


def _list_of(change: Change) -> str | None:
    """Return the path of the list or dict of which an item was added, moved or removed."""
    is_new = change.old.value is fdl.NO_VALUE and change.path.endswith("]")
    is_gone = change.new.path is None and re.search(r"\[\d+\]$", change.path)
    is_item = is_new or is_gone
    return change.path.rpartition("[")[0] if is_item else None


class Directive(NamedTuple):
    """A directive, such as `set:seed=3`: its kind, its selector and the rest."""

    kind: str
    path: str
    rest: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.path}{self.rest}"


def directives_for(
    root: Any, target: Any, changes: Iterable[Change], part_name: PartName, *, lists: bool
) -> list[list[str]]:
    """Return groups of directives that make changes in `root`, as far as directives can.

    Where one directive covers a whole group, it comes first; the others have one parameter each.

    Args:
      root: the graph that is to be changed.
      target: what it is to become.
      changes: the differences between the two.
      part_name: how to call a constructor.
      lists: whether to write out new nodes with all that is inside, and lists and dicts of which
        nodes were added, moved or removed: no directive adds or removes a single one.
    """
    changes = list(changes)
    whole = _whole_lists(target, changes, part_name, lists=lists)
    groups: dict[Any, list[Directive]] = {one: [one] for one in whole.values()}
    for change in changes:
        if any(change.path.startswith(f"{path}[") for path in whole):
            continue
        if one := _directive(target, change, part_name, lists):
            name = re.split(r"[.\]]", one.path)[-1] if one.kind in ("set", "del") else one.path
            groups.setdefault((one.kind, name, one.rest), []).append(one)
    return [piece for group in groups.values() for piece in _together(root, group)]


def _whole_lists(
    target: Any, changes: list[Change], part_name: PartName, *, lists: bool
) -> dict[str, Directive]:
    """Return the outermost lists and dicts of which items were added, moved or removed.

    Without `lists`, only those that hold no nodes any more.
    """
    found: dict[str, Directive] = {}
    for path in sorted({path for change in changes if (path := _list_of(change))}, key=len):
        if any(path.startswith((f"{outer}[", f"{outer}.")) for outer in found):
            continue
        with contextlib.suppress(errors.ConfigError):  # it is inside a node that is gone
            ref = find_parameter(target, path)
            is_spelled = lists or not walk.parts(ref.value)
            if is_spelled and (text := spell(ref.value, ref.hint, part_name)) is not None:
                found[path] = Directive("set", path, f"={text}")
    return found


def _directive(target: Any, change: Change, part_name: PartName, is_deep: bool) -> Directive | None:
    path, new, old = change.old.path or change.new.path, change.new, change.old.value
    if not path or new.path not in (None, path) or isinstance(change, TagsChanged):
        return None  # it is inside an item that moved
    if _list_of(change) is not None:
        return None
    is_part = isinstance(new.value, fdl.Buildable)
    if isinstance(change, SharingChanged):
        if new.shared_with:
            return Directive("tie", path, f"={new.shared_with}")
        return Directive("untie", path) if is_part else None
    if is_part and formulas.is_formula(new.value):
        return Directive("set", path, formula_text(new.value))
    if is_part and not isinstance(change, ValueChanged):
        known = fiddle.set_arguments(new.value)
        kept = fiddle.set_arguments(old) if isinstance(old, fdl.Buildable) else {}
        keys = [key for key in known if key not in kept or repr(kept[key]) != repr(known[key])]
        text = call_text(new.value, keys, part_name, is_deep=is_deep)
        replaces_value = not (isinstance(old, fdl.Buildable) or old is None or old is fdl.NO_VALUE)
        if replaces_value and hints.is_unknown(find_parameter(target, path).hint):
            return Directive("set", path, f"={text}" if "(" in text else f"={text}()")
        return Directive("use", path, f"={text}")
    if new.is_default or new.inherited_from or new.value is fdl.NO_VALUE:
        return Directive("del", path)
    text = new.value if isinstance(new.value, str) else spell(new.value, type(new.value))
    return None if text is None else Directive("set", path, f"={text}")


def _together(root: Any, group: list[Directive]) -> Iterator[list[str]]:
    """Yield one directive for all before the group, if there is one; else each by itself."""
    own, paths = [str(one) for one in group], {one.path for one in group}
    if len(paths) == 1:
        yield own[:1]
    elif short := next(
        (one for one in _short_forms(root, group[0]) if _paths(root, one) == paths), None
    ):
        yield [str(short), *own]
    else:
        yield from ([one] for one in own)


def _short_forms(root: Any, one: Directive) -> Iterator[Directive]:
    """Yield directives that may cover all of a group of which one is known, the plainest first."""
    try:
        ref = find_parameter(root, one.path)
    except errors.ConfigError:  # it is inside a node that another directive puts there
        return
    if one.kind == "set" and isinstance(ref.container, fdl.Buildable):
        tags = fiddle.argument_tags(ref.container).get(ref.key, ())
        yield from (Directive("tag", name, one.rest) for name in sorted(t.__name__ for t in tags))
    name = one.path.rpartition(".")[2]
    for selector in (_all_items(one.path), f"**.{name}", f":{walk.title(ref.container)}.{name}"):
        yield one._replace(path=selector)


def _paths(root: Any, one: Directive) -> set[str]:
    """Return the parameters that a directive selects."""
    try:
        selector = selectors.tags_in(root)[one.path] if one.kind == "tag" else one.path
        return {ref.path for ref in selectors.find_parameters(root, selector)}
    except errors.ConfigError:
        return set()


Compose = Callable[[Sequence[str]], Any]
_MOST_COMPARED = 10  # graphs to begin with, of which the nearest is chosen
_MOST_FIDDLERS = 4
_MOST_USEFUL = 12  # fiddlers that are tried together with others
_MOST_ROUNDS = 4  # a new node shows what is still to be set inside
_MOST_DROPPED = 60
_LARGE = 2000  # nodes, past which trying every fiddler would take too long


def _called(root: Any) -> set[Any]:
    """Return the identities of what the nodes of a graph call."""
    return {id(fdl.get_callable(node.value)) for node in walk.parts(root)}


def _most_similar(root: Any, others: Mapping[str, Any]) -> list[str]:
    """Return the names of graphs, those with most of the calls and plain values of `root` first."""

    def pieces(graph: Any) -> set[tuple[int, fiddle.Key, str]]:
        return {
            (id(fdl.get_callable(part)), key, walk.title(one) if walk.is_node(one) else repr(one))
            for part in (node.value for node in walk.parts(graph))
            for key, one in fiddle.set_arguments(part).items()
        }

    def similarity(name: str) -> float:
        found = pieces(others[name])
        return len(wanted & found) / max(1, len(wanted | found))

    wanted = pieces(root)
    return sorted(others, key=similarity, reverse=True)


class _Search:
    """A search for the fewest directives that make a graph; results of attempts are kept."""

    def __init__(
        self, root: Any, compose: Compose, fiddlers: Iterable[str], part_name: PartName
    ) -> None:
        self._root = root
        self._compose = compose
        self._fiddlers = list(fiddlers)
        self._part_name = part_name
        self._target = BoundGraph(root)
        self._left: dict[tuple[str, ...], list[Change] | None] = {}
        self._useful: dict[str, float] = {}  # with what each saves alone, the most first

    def left(self, directives: Sequence[str]) -> list[Change] | None:
        """Return the differences that remain; None if the directives make no graph."""
        key = tuple(directives)
        if key not in self._left:
            try:
                self._left[key] = list(comparison.diff(self._compose(key), self._target))
            except errors.ConfigError:
                self._left[key] = None
        return self._left[key]

    def cost(self, directives: Sequence[str]) -> float:
        """Return how much remains, each change by its weight."""
        left = self.left(directives)
        return math.inf if left is None else sum(map(cost, left))

    def rank(self, directives: list[str]) -> tuple[float, int]:
        return self.cost(directives), len(directives)

    def ways(self, first: str) -> list[list[str]]:
        """Return lists of directives that make the graph, or come near it.

        Fiddlers come first, or after what else was set; lists are written out only where neither
        makes the graph.
        """
        self._find_useful(first)
        ways = [self._alternate([first])]
        if self.cost(ways[0]):
            ways.append(self._alternate(self._add_directives([first])))
        if all(map(self.cost, ways)):
            ways += [self._add_directives(way, lists=True) for way in (*ways, [first])]
        least = min(map(self.cost, ways))
        nearest_ways = dict.fromkeys(tuple(way) for way in ways if self.cost(way) == least)
        return [self.without_needless(list(way)) for way in nearest_ways]

    def _find_useful(self, first: str) -> None:
        """Keep the fiddlers that save most, of those that call nothing but what is wanted."""
        now = self.cost([first])
        wanted = _called(self._root) | _called(self._compose([first]))
        made: dict[str, Any] = {}
        for one in self._fiddlers if now > 1 else ():
            with contextlib.suppress(errors.ConfigError):
                graph = self._compose([first, one])
                if _called(graph) <= wanted:
                    made[one] = graph
        useful = _most_similar(self._root, made)[:_MOST_USEFUL]
        saved = {one: now - self.cost([first, one]) for one in useful}
        self._useful = {one: saved[one] for one in sorted(useful, key=lambda one: -saved[one])}

    def without_needless(self, directives: list[str]) -> list[str]:
        """Drop each directive that the others imply, unless there are too many to try."""
        now = self.cost(directives)
        for i in range(len(directives) - 1 if len(directives) <= _MOST_DROPPED else 0, 0, -1):
            fewer = [*directives[:i], *directives[i + 1 :]]
            if self.cost(fewer) <= now:
                directives, now = fewer, self.cost(fewer)
        return directives

    def _add_fiddlers(self, directives: list[str], *, saves: float) -> list[str]:
        """Add the fiddler that saves most, and the next, while one saves at least so much.

        What a fiddler saves alone is taken as the most that it saves after others.
        """
        for _ in range(_MOST_FIDDLERS):
            now, best, most = self.cost(directives), "", 0.0
            for one, saved in self._useful.items():
                if best and saved <= most:
                    break
                if one not in directives and (own := now - self.cost([*directives, one])) > most:
                    best, most = one, own
            if most < saves:
                break
            directives = [*directives, best]
        return directives

    def _alternate(self, directives: list[str]) -> list[str]:
        """Add fiddlers, and directives for the differences that they leave, in turn."""
        for saves in range(2, 2 - _MOST_ROUNDS, -1):
            more = self._add_directives(self._add_fiddlers(directives, saves=max(1, saves)))
            if saves < 2 and self.cost(more) >= self.cost(directives):
                break
            directives = more
        return directives

    def _add_directives(self, directives: list[str], *, lists: bool = False) -> list[str]:
        """Add directives for the differences that remain, while that leaves others."""
        left = self.left(directives)
        for _ in range(_MOST_ROUNDS):
            if not left:
                break
            groups = directives_for(
                self._compose(tuple(directives)), self._root, left, self._part_name, lists=lists
            )
            more = self._add_groups(directives, groups)
            now = self.left(more)
            if now is None or more == directives or str(now) == str(left):
                break
            directives, left = more, now
        return directives

    def _add_groups(self, directives: list[str], groups: list[list[str]]) -> list[str]:
        """Add the first directive of each group, or all others, as far as they can be applied."""
        whole = [*directives, *(group[0] for group in groups)]
        if self.left(whole) is not None:
            return whole
        for group in groups:
            for more in (group[:1], group[1:]):
                if more and self.left([*directives, *more]) is not None:
                    directives = [*directives, *more]
                    break
        return directives


class Repro(NamedTuple):
    """How to reproduce a graph.

    Attributes:
      directives: in order; the first one names the graph to begin with.
      left: the differences that no directive can make; with none, the graphs are equal.
      is_same: whether the fingerprints agree.
    """

    directives: list[str]
    left: list[Change]
    is_same: bool


def repro(
    root: Any,
    bases: Mapping[str, Any],
    *,
    compose: Compose,
    fiddlers: Iterable[str] = (),
    known: Sequence[str] = (),
    part_name: PartName = attrgetter("__qualname__"),
) -> Repro:
    """Return the directives that make `root` from the nearest base.

    Args:
      root: the graph.
      bases: graphs to begin with, by the directive that makes each.
      compose: makes the graph of some directives.
      fiddlers: directives to try for what they save, such as `fiddler:use_gelu`.
      known: directives that may have made it, of which some may not be needed.
      part_name: how a directive calls a constructor.

    Returns:
      As few directives as were found, each of them needed, checked by making the graph.

    Raises:
      ConfigError: a graph cannot be bound, or holds what has no name.
    """
    search = _Search(root, compose, fiddlers if len(walk.parts(root)) <= _LARGE else (), part_name)
    ways: list[list[str]] = []
    if known and search.cost(known) == 0:
        ways.append(search.without_needless(list(known)))
    first = nearest(root, bases)
    if not ways or ways[0][0] != first or len(ways[0]) > 2:  # fewer are impossible
        ways = search.ways(first) + ways
    best = min(ways, key=search.rank)
    left = search.left(best) or []
    is_same = not left and BoundGraph(compose(best)).fingerprint() == BoundGraph(root).fingerprint()
    return Repro(best, left, is_same)


def nearest(root: Any, bases: Mapping[str, Any]) -> str:
    """Return the name of the graph that differs least from `root`, of the ten most similar ones.

    A graph that cannot be bound is passed over.

    Raises:
      ConfigError: there is no graph to choose, or `root` cannot be bound.
    """
    target = BoundGraph(root)
    distances: dict[str, int] = {}
    for name in _most_similar(root, bases):
        with contextlib.suppress(errors.ConfigError):
            distances[name] = distance(comparison.diff(bases[name], target))
        if len(distances) == _MOST_COMPARED:
            break
    if not distances:
        raise errors.ConfigError("there is no config to start from.")
    return min(distances, key=lambda name: distances[name])
