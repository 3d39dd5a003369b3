"""Directives that reproduce a graph, checked by making it."""

import contextlib
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
    SharingChanged,
    TagsChanged,
    ValueChanged,
)
from fidgpt.graph.paths import find_parameter
from fidgpt.graph.spelling import PartName, call_text, formula_text, spell


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
_MOST_ROUNDS = 4  # a new node shows what is still to be set inside
_MOST_DROPPED = 60  # directives, of which each is left out once


class _Trials:
    """Directives that are applied to learn what they leave to be done; results are kept."""

    def __init__(self, root: Any, compose: Compose, part_name: PartName) -> None:
        self._root = root
        self._compose = compose
        self._part_name = part_name
        self._target = BoundGraph(root)
        self._left: dict[tuple[str, ...], list[Change] | None] = {}

    def left(self, directives: Sequence[str]) -> list[Change] | None:
        """Return the differences that remain; None if the directives make no graph."""
        key = tuple(directives)
        if key not in self._left:
            try:
                self._left[key] = list(comparison.diff(self._compose(key), self._target))
            except errors.ConfigError:
                self._left[key] = None
        return self._left[key]

    def with_differences(self, directives: list[str], *, lists: bool) -> list[str]:
        """Add directives for the differences that remain, while that leaves others."""
        left = self.left(directives)
        for _ in range(_MOST_ROUNDS):
            if not left:
                break
            groups = directives_for(
                self._compose(tuple(directives)), self._root, left, self._part_name, lists=lists
            )
            more = self._with_groups(directives, groups)
            now = self.left(more)
            if now is None or more == directives or str(now) == str(left):
                break
            directives, left = more, now
        return directives

    def _with_groups(self, directives: list[str], groups: list[list[str]]) -> list[str]:
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

    def without_needless(self, directives: list[str]) -> list[str]:
        """Drop each directive without which no more remains, unless there are too many to try."""
        if len(directives) > _MOST_DROPPED:
            return directives
        for i in range(len(directives) - 1, 0, -1):
            fewer = [*directives[:i], *directives[i + 1 :]]
            left = self.left(fewer)
            if left is not None and len(left) <= len(self.left(directives) or ()):
                directives = fewer
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
    start: Sequence[str],
    *,
    compose: Compose,
    part_name: PartName = attrgetter("__qualname__"),
) -> Repro:
    """Return directives that make `root`: those given, and those that set what then differs.

    Args:
      root: the graph.
      start: directives that make a graph like it.
      compose: makes the graph of some directives.
      part_name: how a directive calls a constructor.

    Returns:
      The directives without those that are not needed, checked by making the graph.

    Raises:
      ConfigError: a graph cannot be bound, or holds what has no name.
    """
    trials = _Trials(root, compose, part_name)
    directives = list(start)
    for lists in (False, True):  # lists are written out where nothing shorter makes the graph
        directives = trials.with_differences(directives, lists=lists)
    directives = trials.without_needless(directives)
    left = trials.left(directives) or []
    composed = BoundGraph(compose(directives))
    is_same = not left and composed.fingerprint() == BoundGraph(root).fingerprint()
    return Repro(directives, left, is_same)


def nearest(root: Any, bases: Mapping[str, Any]) -> str:
    """Return the name of the graph with most of the calls and plain values of `root`.

    Raises:
      ConfigError: there is no graph to choose.
    """

    def pieces(graph: Any) -> set[tuple[int, fiddle.Key, str]]:
        return {
            (id(fdl.get_callable(node)), key, _short(value))
            for node in (node.value for node in walk.parts(graph))
            for key, value in fiddle.set_arguments(node).items()
        }

    def similarity(name: str) -> float:
        others = pieces(bases[name])
        return len(wanted & others) / max(1, len(wanted | others))

    if not bases:
        raise errors.ConfigError("there is no config to start from.")
    wanted = pieces(root)
    return max(bases, key=similarity)


def _short(value: Any) -> str:
    return walk.title(value) if walk.is_node(value) else repr(value)
