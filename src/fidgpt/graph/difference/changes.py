"""The kinds of changes between two graphs."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.fiddle import Key, all_arguments, named_defaults, set_arguments
from fidgpt.graph.formulas import is_formula
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.paths import path_of
from fidgpt.graph.storage.equality import Apart, Lockstep, Pair, is_plain
from fidgpt.graph.storage.hashing import leaf_key
from fidgpt.graph.storage.order import step_between
from fidgpt.graph.walk import IS_PART, join, nodes, title

_MAX_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Side:
    """What one of the two graphs holds at the place of a change.

    Attributes:
      path: the place; None where this graph has no such place, as for an item of a list.
      value: a plain value, or the part itself; `fdl.NO_VALUE` where nothing is set.
      said_by: the place from which the value is heard, if it is.
      is_default: whether nobody said anything, and the default stands.
      shared_with: another place that holds the same part.
    """

    path: str | None
    value: Any = fdl.NO_VALUE
    said_by: str | None = None
    is_default: bool = False
    shared_with: str | None = None

    def __str__(self) -> str:
        if self.shared_with:
            return f"shared with {self.shared_with}"
        text = describe(self.value)
        if self.said_by:
            return f"{text} (heard from {self.said_by})"
        return f"{text} (default)" if self.is_default else text


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between an old graph and a new one."""

    old: Side
    new: Side

    @property
    def path(self) -> str:
        """The place in the new graph; of what is gone, that in the old one."""
        path = self.old.path if self.new.path is None else self.new.path
        return path or ""

    @property
    def sign(self) -> str:
        """+ for what came, - for what went, ~ for the rest."""
        return "~"

    @property
    def detail(self) -> str:
        """What is different, without the place."""
        return f"{self.old} -> {self.new}"

    def __str__(self) -> str:
        return f"{self.sign} {self.path or 'the root'}: {self.detail}"


@dataclass(frozen=True, slots=True)
class ValueChanged(Change):
    """Another plain value, or none any more. `heard_by` are the parameters that hear it."""

    heard_by: tuple[str, ...] = ()

    @property
    def detail(self) -> str:
        if not self.heard_by:
            return f"{self.old} -> {self.new}"
        noun = "parameter" if len(self.heard_by) == 1 else "parameters"
        return f"{self.old} -> {self.new}, heard by {len(self.heard_by)} {noun}"


@dataclass(frozen=True, slots=True)
class PartAdded(Change):
    """A part where there was none, with all that only it holds.

    Attributes:
      like: another item of the same list, which it resembles; in what the two differ are changes
        of their own.
    """

    like: str | None = None

    @property
    def sign(self) -> str:
        return "+"

    @property
    def detail(self) -> str:
        if self.like:
            return f"{title(self.new.value)} like {self.like}"
        return describe(self.new.value) + _instead(self.old.value)


@dataclass(frozen=True, slots=True)
class PartRemoved(Change):
    """A part that is gone, with all that only it held."""

    @property
    def sign(self) -> str:
        return "-"

    @property
    def detail(self) -> str:
        left = "" if self.new.value is fdl.NO_VALUE else f", now {self.new}"
        return describe(self.old.value) + left


@dataclass(frozen=True, slots=True)
class PartReplaced(Change):
    """Another call in the same place; arguments that differ are changes of their own."""

    @property
    def detail(self) -> str:
        old, new = title(self.old.value), title(self.new.value)
        both_parts = all(isinstance(one.value, fdl.Buildable) for one in (self.old, self.new))
        if old == new and both_parts:  # two of one name, or one in another kind of part
            paths = [path_of(fdl.get_callable(one.value)) for one in (self.old, self.new)]
            old, new = paths if paths[0] != paths[1] else (old, new)
        if type(self.old.value) is type(self.new.value) or not both_parts:
            return f"{old} -> {new}"
        kinds = type(self.old.value).__name__, type(self.new.value).__name__
        return f"{kinds[0]} of {old} -> {kinds[1]} of {new}"


@dataclass(frozen=True, slots=True)
class SharingChanged(Change):
    """The same part as elsewhere, or one of its own: which places hold one part has changed.

    Attributes:
      is_equal: whether the part of its own and the shared one are alike in all they hold.
    """

    is_equal: bool = False

    @property
    def sign(self) -> str:
        return "&"

    @property
    def detail(self) -> str:
        old, new = self._side(self.old), self._side(self.new)
        return f"{new}, not {self.old.path}" if old == new else f"{old} -> {new}"

    def _side(self, side: Side) -> str:
        if side.shared_with or not isinstance(side.value, fdl.Buildable):
            return str(side)
        return f"{'an equal' if self.is_equal else 'a'} {title(side.value)} of its own"


@dataclass(frozen=True, slots=True)
class TagsChanged(Change):
    """Other tags on a parameter, by name."""

    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def detail(self) -> str:
        lost = [f"no longer tagged {name}" for name in self.removed]
        return ", ".join([*lost, *(f"tagged {name}" for name in self.added)])


@dataclass(frozen=True, slots=True)
class ItemMoved(Change):
    """An item of a list that stands before or after others than it did."""

    @property
    def detail(self) -> str:
        return f"{describe(self.new.value)}, was {self.old.path}"


def describe(value: Any) -> str:
    """A plain value as one would write it; a part as a call on one line, its own parts as `X()`.

    A quantity that is left open stands as the name of its tag.
    """
    if value is fdl.NO_VALUE:
        return "not set"
    if not isinstance(value, fdl.Buildable) or is_formula(value):
        return short(value)
    known = set_arguments(value)
    words = [
        f"{key}={short(known[key]) if key in known else _tag_names(value, key)}"
        for key in all_arguments(value)
        if key in known or fdl.get_tags(value, key)
    ]
    return _shortened(f"{title(value)}({', '.join(words)})")


def short(value: Any) -> str:
    """A value on one line, as one would write it, with each part as `X()`."""
    if is_formula(value):
        return value.text
    if isinstance(value, fdl.Buildable):
        return f"{title(value)}()"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {short(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(short, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(short, value))}{',' * (len(value) == 1)})"
    return leaf_text(value)


def _tag_names(part: fdl.Buildable, key: str | int) -> str:
    return " and ".join(sorted(tag.__name__ for tag in fdl.get_tags(part, key)))


def _instead(value: Any) -> str:
    """What stood there before; None is as good as nothing."""
    return "" if value is None or value is fdl.NO_VALUE else f", instead of {describe(value)}"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_WIDTH else f"{text[: _MAX_WIDTH - 1]}…"


def plain_changes(old: Any, new: Any) -> list[ValueChanged] | None:
    """What differs between two graphs where parts hold plain values; None where more may differ.

    It is what a full comparison finds.

    Raises:
      ConfigError: a part contains itself.
    """
    try:
        lockstep = Lockstep(old, new)
        _refuse_moved(lockstep)
    except Apart:
        return None
    return list(_changes(lockstep))


def _changes(lockstep: Lockstep) -> Iterator[ValueChanged]:
    for one, other, old, new, key, _ in lockstep.found:
        path = join(lockstep.path(old), step_between(old, key))
        sides = _side(path, old, key, one), _side(path, new, key, other)
        yield ValueChanged(*sides, lockstep.hearers(old, key))


def _side(path: str, part: Any, key: Key, value: Any) -> Side:
    is_set = key in part.__arguments__
    return Side(path, value, is_default=not is_set and value is not fdl.NO_VALUE)


def _refuse_moved(lockstep: Lockstep) -> None:
    """Items of a list stand for those in their places only if none went to another place.

    Raises:
      Apart: one may have.
    """
    touched: dict[int, dict[int, Pair]] = {}
    for pair in lockstep.found:
        node, key = pair[2], pair[4]
        while node is not None:
            if id(node) in lockstep.again:
                raise Apart
            if isinstance(node, list | tuple):
                touched.setdefault(id(node), {})[key] = lockstep.lead[id(node[key])]
            node, key = lockstep.lead[id(node)][2], lockstep.lead[id(node)][4]
    for items in touched.values():
        if len(items) > 1:
            olds, news = ({_words(pair[which]) for pair in items.values()} for which in (0, 1))
            if not olds.isdisjoint(news):
                raise Apart


def _words(item: Any) -> Hashable:
    """The same for items that are written alike, and seldom for others."""
    words: set[Hashable] = set()
    for node in nodes(item):
        if IS_PART[type(node.value)]:
            arguments = {**(named_defaults(node.value) or {}), **node.value.__arguments__}
            words |= {(key, leaf_key(one)) for key, one in arguments.items() if is_plain(one)}
    return frozenset(words)
