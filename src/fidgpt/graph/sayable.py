"""Differences between two graphs as the directives that one would type to make them."""

import enum
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.arguments import every, given
from fidgpt.graph.difference.changes import (
    Change,
    PartAdded,
    PartRemoved,
    PartReplaced,
    SharingChanged,
    Side,
    ValueChanged,
)
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.formula import is_formula
from fidgpt.graph.hints import hint_of
from fidgpt.graph.selecting.paths import Place, find_place
from fidgpt.graph.selecting.selectors import places, places_of_tag, tags_in
from fidgpt.graph.values import read_value
from fidgpt.graph.walk import parts, title

_WORD = re.compile(r"[A-Za-z_][\w./-]*")
_INDEX = re.compile(r"\[\d+\]")


@dataclass(frozen=True, slots=True)
class Word:
    """A directive in the making.

    Attributes:
      kind: such as `set`.
      path: the place.
      rest: what follows the place, such as `=3`.
    """

    kind: str
    path: str
    rest: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.path}{self.rest}"


def words(
    root: Any, target: Any, changes: Iterable[Change], *, part_name: Callable[[Any], str]
) -> list[list[str]]:
    """Groups of directives that make changes in `root`, as far as a directive can make them.

    The changes are those that make it `target`; `part_name` tells how to call a constructor.

    Of each group one directive says it all, where there is one, and stands alone; else there is
    one for each place.
    """
    groups: dict[tuple[str, str, str], list[Word]] = {}
    for change in changes:
        word = _word(change, part_name) or _whole(target, change)
        if word is not None:
            name = re.split(r"[.\]]", word.path)[-1] if word.kind in ("set", "del") else word.path
            groups.setdefault((word.kind, name, word.rest), []).append(word)
    return [piece for group in groups.values() for piece in _together(root, group)]


def value_text(value: Any, hint: Any) -> str | None:
    """What one would type for a value where `hint` is asked; None where no text says it."""
    kind = type(value)
    texts = [repr(value)]
    if isinstance(value, str):
        texts = [value, repr(value)]
    elif isinstance(value, enum.Enum):
        texts = [value.name]
    elif kind.__module__ == "torch":
        texts = [str(value).removeprefix("torch."), str(value)]
    elif not isinstance(value, int | float | list | tuple | dict | None):
        texts = [str(value)]
    return next((text for text in texts if _means(text, hint, value)), None)


def _means(text: str, hint: Any, value: Any) -> bool:
    try:
        read = read_value(text, hint)
    except ConfigError:
        return False
    return type(read) is type(value) and repr(read) == repr(value)


def _word(change: Change, part_name: Callable[[Any], str]) -> Word | None:
    path = change.old.path or change.new.path
    if path is None:
        return None
    new = change.new
    match change:
        case SharingChanged():
            if new.shared_with:
                return Word("tie", path, f"={new.shared_with}")
            return Word("untie", path) if isinstance(new.value, fdl.Buildable) else None
        case PartReplaced() | PartAdded() if isinstance(new.value, fdl.Buildable):
            return _use(change, path, part_name)
        case PartReplaced() | PartRemoved() | ValueChanged() | PartAdded():
            return _set(path, new)
    return None


def _whole(target: Any, change: Change) -> Word | None:
    """A list that lost all its parts is set as a whole: no directive takes out one item."""
    held, bracket, _ = change.path.rpartition("[")
    if not bracket:
        return None
    try:
        value = find_place(target, held).value
    except ConfigError:
        return None
    text = None if parts(value) else value_text(value, Any)
    return None if text is None else Word("set", held, f"={text}")


def _set(path: str, new: Side) -> Word | None:
    if new.path is None and path.endswith("]"):
        return None  # an item of a list that is gone
    if new.is_default or new.said_by or new.value is fdl.NO_VALUE:
        return Word("del", path)
    text = new.value if isinstance(new.value, str) else value_text(new.value, type(new.value))
    return None if text is None else Word("set", path, f"={text}")


def _use(change: Change, path: str, part_name: Callable[[Any], str]) -> Word | None:
    part = change.new.value
    if is_formula(part):
        return Word("set", path, f"={given(part)['text']}")
    if isinstance(change, PartAdded) and change.old.path is None:
        return None  # an item of a list, where a directive cannot put one
    old = change.old.value
    kept = given(old) if isinstance(old, fdl.Buildable) else {}
    arguments = [
        f"{key}={text}"
        for key, value in given(part).items()
        if isinstance(key, str) and not fdl.get_tags(part, key)
        if key not in kept or repr(kept[key]) != repr(value)
        if (text := _argument_text(value, hint_of(part, key))) is not None
    ]
    call = f"({', '.join(arguments)})" if arguments else ""
    return Word("use", path, f"={part_name(fdl.get_callable(part))}{call}")


def _argument_text(value: Any, hint: Any) -> str | None:
    """A value between commas; one that is a part is said by itself."""
    if isinstance(value, fdl.Buildable):
        return None
    if isinstance(value, str) and not _WORD.fullmatch(value):
        return repr(value)
    return value_text(value, hint)


def _together(root: Any, group: list[Word]) -> Iterator[list[str]]:
    """One directive for all, where there is one; else all of them."""
    own = [str(word) for word in group]
    paths = {word.path for word in group}
    if len(paths) == 1:
        yield own[:1]
        return
    short = next((one for one in _candidates(root, group) if _places(root, one) == paths), None)
    if short is None:
        yield from ([one] for one in own)
    else:
        yield [str(short), *own]


def _candidates(root: Any, group: list[Word]) -> Iterator[Word]:
    """What may say all of a group, the plainest first."""
    first = group[0]
    try:
        called = title(find_place(root, first.path).container)
    except ConfigError:  # a place in a part that another directive puts there
        return
    for tag in sorted(_tags_at(root, first.path)) if first.kind == "set" else []:
        yield Word("tag", tag, first.rest)
    yield Word(first.kind, _INDEX.sub("[*]", first.path), first.rest)
    name = first.path.rpartition(".")[2]
    yield Word(first.kind, f"**.{name}", first.rest)
    yield Word(first.kind, f":{called}.{name}", first.rest)


def _tags_at(root: Any, path: str) -> list[str]:
    place = find_place(root, path)
    if not isinstance(place.container, fdl.Buildable) or place.key not in every(place.container):
        return []
    return [tag.__name__ for tag in fdl.get_tags(place.container, place.key)]


def _places(root: Any, word: Word) -> set[str]:
    try:
        found = _of_tag(root, word.path) if word.kind == "tag" else places(root, word.path)
    except ConfigError:
        return set()
    return {place.path for place in found}


def _of_tag(root: Any, name: str) -> list[Place]:
    return places_of_tag(root, tags_in(root)[name])
