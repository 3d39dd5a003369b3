"""The kinds of changes between two graphs, and their text."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import fiddle as fdl

from fidgpt.graph import fiddle, formulas, walk
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.paths import TEXT, path_of


@dataclass(frozen=True, slots=True)
class Side:
    """What one of the two graphs holds at the place of a change.

    Attributes:
      path: the place; None where this graph has no such place, as for an item of a list.
      value: a plain value, or the part itself; `fdl.NO_VALUE` where nothing is set.
      inherited_from: the path of the argument from which the value is inherited, if it is.
      is_default: whether the value is the default of the parameter.
      shared_with: another place that holds the same part.
    """

    path: str | None
    value: Any = fdl.NO_VALUE
    inherited_from: str | None = None
    is_default: bool = False
    shared_with: str | None = None

    def __str__(self) -> str:
        if self.shared_with:
            return f"shared with {self.shared_with}"
        text = describe(self.value)
        if self.inherited_from:
            return f"{text} (inherited from {self.inherited_from})"
        return f"{text} (default)" if self.is_default else text


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between an old graph and a new one.

    Attributes:
      sign: + for an addition, - for a removal, & for newly shared nodes, ~ for the rest.
      old: what the old graph holds.
      new: what the new one holds.
    """

    sign: ClassVar[str] = "~"
    old: Side
    new: Side

    @property
    def path(self) -> str:
        """The path in the new graph; of what was removed, that in the old one."""
        path = self.old.path if self.new.path is None else self.new.path
        return path or ""

    @property
    def detail(self) -> str:
        """What is different, without the path."""
        return f"{self.old} -> {self.new}"

    def __str__(self) -> str:
        return f"{self.sign} {self.path or 'the root'}: {self.detail}"


@dataclass(frozen=True, slots=True)
class ValueChanged(Change):
    """A plain value that is another or gone.

    Attributes:
      inherited_by: the paths of the parameters that inherit it.
      num_places: how many paths it has, because a part that holds it is shared.
    """

    inherited_by: tuple[str, ...] = ()
    num_places: int = 1

    @property
    def detail(self) -> str:
        text = f"{self.old} -> {self.new}"
        if self.num_places > 1:
            text += f", shared by {self.num_places} places"
        if not self.inherited_by:
            return text
        noun = "parameter" if len(self.inherited_by) == 1 else "parameters"
        return f"{text}, inherited by {len(self.inherited_by)} {noun}"


@dataclass(frozen=True, slots=True)
class PartAdded(Change):
    """A part where there was none, with all that only it holds.

    Attributes:
      like: another item of the same list, which it resembles; the differences between the two are
        separate changes.
    """

    sign = "+"
    like: str | None = None

    @property
    def detail(self) -> str:
        if self.like:
            return f"{walk.title(self.new.value)} like {self.like}"
        return describe(self.new.value) + _instead(self.old.value)


@dataclass(frozen=True, slots=True)
class PartRemoved(Change):
    """A part that was removed, with all that only it held."""

    sign = "-"

    @property
    def detail(self) -> str:
        left = "" if self.new.value is fdl.NO_VALUE else f", now {self.new}"
        return describe(self.old.value) + left


@dataclass(frozen=True, slots=True)
class PartReplaced(Change):
    """Another call in the same place; arguments that differ are separate changes."""

    @property
    def detail(self) -> str:
        old, new = walk.title(self.old.value), walk.title(self.new.value)
        both_parts = all(isinstance(arg.value, fdl.Buildable) for arg in (self.old, self.new))
        if old == new and both_parts:  # of one name, or of another kind of part
            paths = [path_of(fdl.get_callable(argument.value)) for argument in (self.old, self.new)]
            old, new = paths if paths[0] != paths[1] else (old, new)
        if fiddle.kind_of(self.old.value) is fiddle.kind_of(self.new.value) or not both_parts:
            return f"{old} -> {new}"
        kinds = type(self.old.value).__name__, type(self.new.value).__name__
        return f"{kinds[0]} of {old} -> {kinds[1]} of {new}"


@dataclass(frozen=True, slots=True)
class SharingChanged(Change):
    """A part that is now shared with another place, or no longer.

    Attributes:
      is_equal: whether the separate part and the shared one have equal content.
    """

    sign = "&"
    is_equal: bool = False

    @property
    def detail(self) -> str:
        old, new = self._side(self.old), self._side(self.new)
        if self.old.path is None:  # inside of an added part
            return new
        return f"{new}, not {self.old.path}" if old == new else f"{old} -> {new}"

    def _side(self, side: Side) -> str:
        if side.shared_with or not isinstance(side.value, fdl.Buildable):
            return str(side)
        return f"{'an equal' if self.is_equal else 'a'} {walk.title(side.value)} of its own"


@dataclass(frozen=True, slots=True)
class TagsChanged(Change):
    """A parameter that carries other tags, by name."""

    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def detail(self) -> str:
        lost = [f"no longer tagged {name}" for name in self.removed]
        return ", ".join([*lost, *(f"tagged {name}" for name in self.added)])


def describe(value: Any) -> str:
    """Return a plain value as in code; a part as a call on one line, its own parts as `X()`.

    An unset quantity is written as the name of its tag.
    """
    if value is fdl.NO_VALUE:
        return "not set"
    if not isinstance(value, fdl.Buildable) or formulas.is_formula(value):
        return leaf_text(value)
    known = fiddle.set_arguments(value)
    words = [
        f"{key}={leaf_text(known[key]) if key in known else ' and '.join(tag_names(value, key))}"
        for key in fiddle.all_arguments(value)
        if key in known or fdl.get_tags(value, key)
    ]
    return f"{walk.title(value)}({', '.join(words)})"


def tag_names(part: fdl.Buildable, key: fiddle.Key) -> tuple[str, ...]:
    """Return the sorted names of a parameter's tags."""
    return names_of(fiddle.argument_tags(part).get(key, ()))


def names_of(tags: Iterable[Any], others: Iterable[Any] = ()) -> tuple[str, ...]:
    """Return the sorted names of tags, with their modules where others have the same names."""
    known = {tag.__name__ for tag in others}
    return tuple(sorted(path_of(tag) if tag.__name__ in known else tag.__name__ for tag in tags))


def _instead(value: Any) -> str:
    """Return what a part replaced; nothing for None."""
    return "" if value is None or value is fdl.NO_VALUE else f", instead of {describe(value)}"


class Changes(list[Change]):
    """The differences between two graphs, which it keeps.

    Attributes:
      old: the old graph.
      new: the new one.
    """

    def __init__(self, changes: Iterable[Change], old: Any, new: Any) -> None:
        super().__init__(changes)
        self.old = old
        self.new = new


_PIECE = re.compile(rf"{TEXT}|\[(\d+)\]")  # the key of a dict, in which brackets mean nothing
_HOLE = "[\0]"  # a sign that no path contains


def diff_text(changes: Iterable[Change]) -> str:
    """Return a line for each change; a change that items of a list have in common is one line."""
    groups: dict[tuple[str, str, str], list[tuple[int, ...]]] = {}
    for change in changes:
        pattern = _PIECE.sub(lambda piece: _HOLE if piece[1] else piece[0], change.path)
        indices = tuple(int(index) for index in _PIECE.findall(change.path) if index)
        groups.setdefault((change.sign, pattern, change.detail), []).append(indices)
    lines = [
        f"{sign} {path or 'the root'}: {detail}"
        for (sign, pattern, detail), indices in groups.items()
        for path in _paths(pattern, indices)
    ]
    return "\n".join(lines or ["no difference"]) + "\n"


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers as ranges: `0, 2-5`."""
    runs: list[list[int]] = []
    for value in sorted(numbers):
        if runs and value == runs[-1][-1] + 1:
            runs[-1][1:] = [value]
        else:
            runs.append([value])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _paths(pattern: str, indices: list[tuple[int, ...]]) -> Iterator[str]:
    """Return one path if the indices are a full product of ranges; else one path for each."""
    columns = [set(column) for column in zip(*indices, strict=True)]
    if math.prod(map(len, columns)) == len(set(indices)) == len(indices):
        yield _filled(pattern, [ranges(column) for column in columns])
    else:
        yield from (_filled(pattern, list(map(str, row))) for row in indices)


def _filled(pattern: str, indices: list[str]) -> str:
    first, *rest = pattern.split(_HOLE)
    return first + "".join(f"[{i}]{text}" for i, text in zip(indices, rest, strict=True))
