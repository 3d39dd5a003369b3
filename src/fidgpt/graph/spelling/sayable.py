"""Differences between two graphs as the directives that one would type to make them."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.difference.changes import (
    Change,
    ItemMoved,
    PartAdded,
    PartRemoved,
    PartReplaced,
    SharingChanged,
    Side,
    TagsChanged,
    ValueChanged,
)
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.selecting.paths import Place, find_place
from fidgpt.graph.selecting.selectors import places, places_of_tag, tags_in
from fidgpt.graph.signatures.annotations import is_unknown
from fidgpt.graph.spelling.spoken import PartName, call_text, formula_text, inner_text, value_text
from fidgpt.graph.structure.arguments import every, given
from fidgpt.graph.structure.walk import parts, title
from fidgpt.graph.typed.formula import is_formula

_ITEM = re.compile(r"\[\d+\]$")
_INDEX = re.compile(r"\[\d+\]")
_UNSAYABLE = 3


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
    root: Any,
    target: Any,
    changes: Iterable[Change],
    *,
    part_name: PartName,
    lists: bool = False,
) -> list[list[str]]:
    """Groups of directives that make changes in `root`, as far as a directive can make them.

    Of each group one directive says it all, where there is one, and stands alone; else there is
    one for each place.

    Args:
      root: the graph that is to be changed.
      target: what it is to become.
      changes: the differences between the two.
      part_name: how to call a constructor.
      lists: whether to write out lists and dicts of which a part came, went or moved, since no
        directive can put or take out a single one, and what lies inside of new parts.
    """
    changes = list(changes)
    whole = _whole_lists(target, changes, part_name) if lists else {}
    groups: dict[tuple[str, str, str], list[Word]] = {}
    for word in whole.values():
        groups[word.kind, word.path, word.rest] = [word]
    for change in changes:
        word = None if _is_inside(change, whole) else _word(target, change, part_name, lists)
        if word is not None:
            name = re.split(r"[.\]]", word.path)[-1] if word.kind in ("set", "del") else word.path
            groups.setdefault((word.kind, name, word.rest), []).append(word)
    return [piece for group in groups.values() for piece in _together(root, group)]


def can_be_said(change: Change) -> bool:
    """Whether a directive may make a change by itself, rather than a fiddler or a whole list."""
    return not isinstance(change, TagsChanged) and _item_of(change) is None


def price(change: Change) -> int:
    """What a change counts: more where only a fiddler, or a whole list, can say it.

    A part that came counts with all that lies inside of it, as each of these takes a directive.
    """
    least = _at_least(change)
    came = isinstance(change, PartAdded) and not is_formula(change.new.value)
    return max(least, len(parts(change.new.value))) if came else least


def distance(changes: Iterable[Change]) -> int:
    """About how many directives say some changes: one says a value or a part in many places."""
    return sum({_gist(change): _at_least(change) for change in changes}.values())


def _at_least(change: Change) -> int:
    return 1 if can_be_said(change) else _UNSAYABLE


def _gist(change: Change) -> tuple[str, ...]:
    if isinstance(change, ValueChanged):
        return re.split(r"[.\]]", change.path)[-1], repr(change.new.value)
    if not can_be_said(change):
        return (change.path,)
    new = change.new.value
    call = title(new) if isinstance(new, fdl.Buildable) else repr(new)
    return _INDEX.sub("[*]", change.path), type(change).__name__, call


def _item_of(change: Change) -> str | None:
    """The path of the list or dict of which an item came or moved, or of a list also went."""
    is_new = change.old.value is fdl.NO_VALUE and change.path.endswith("]")
    is_gone = change.new.path is None and _ITEM.search(change.path)
    if isinstance(change, ItemMoved) or is_new or is_gone:
        return change.path.rpartition("[")[0]
    return None


def _word(target: Any, change: Change, part_name: PartName, deep: bool) -> Word | None:
    path, new = change.old.path or change.new.path, change.new
    if not path or new.path not in (None, path):  # in an item that is elsewhere now
        return None
    if not can_be_said(change):
        return _plain_list(target, change)
    match change:
        case SharingChanged():
            if new.shared_with:
                return Word("tie", path, f"={new.shared_with}")
            return Word("untie", path) if isinstance(new.value, fdl.Buildable) else None
        case PartReplaced() | PartAdded() if isinstance(new.value, fdl.Buildable):
            return _part(target, change, path, part_name, deep)
        case PartReplaced() | PartRemoved() | ValueChanged() | PartAdded():
            return _set(path, new)
    return None


def _plain_list(target: Any, change: Change) -> Word | None:
    """A list that lost all its parts is set as a whole."""
    path = _item_of(change)
    try:
        value = find_place(target, path).value if path else fdl.NO_VALUE
    except ConfigError:
        return None
    text = None if value is fdl.NO_VALUE or parts(value) else value_text(value, Any)
    return None if text is None else Word("set", path or "", f"={text}")


def _whole_lists(target: Any, changes: list[Change], part_name: PartName) -> dict[str, Word]:
    """The outermost lists and dicts of which items came, went or moved, by their paths."""
    found: dict[str, Word] = {}
    for path in sorted({path for change in changes if (path := _item_of(change))}, key=len):
        if any(path.startswith((f"{outer}[", f"{outer}.")) for outer in found):
            continue
        with contextlib.suppress(ConfigError):  # one in what is no more
            place = find_place(target, path)
            text = inner_text(place.value, place.hint, part_name)
            if text is not None:
                found[path] = Word("set", path, f"={text}")
    return found


def _is_inside(change: Change, whole: dict[str, Word]) -> bool:
    """Whether a change lies in a list that is written out."""
    return any(change.path.startswith(f"{path}[") for path in whole)


def _set(path: str, new: Side) -> Word | None:
    if new.path is None and path.endswith("]"):
        return None  # an item of a list that is gone
    if new.is_default or new.said_by or new.value is fdl.NO_VALUE:
        return Word("del", path)
    text = new.value if isinstance(new.value, str) else value_text(new.value, type(new.value))
    return None if text is None else Word("set", path, f"={text}")


def _part(target: Any, change: Change, path: str, part_name: PartName, deep: bool) -> Word:
    """Puts a part in a place: by `use:`, unless a plain value stands where anything may."""
    part, old = change.new.value, change.old.value
    if is_formula(part):
        return Word("set", path, formula_text(part))
    kept = given(old) if isinstance(old, fdl.Buildable) else {}
    known = given(part)
    keys = [key for key in known if key not in kept or repr(kept[key]) != repr(known[key])]
    text = call_text(part, keys, part_name, deep=deep)
    is_plain = not (isinstance(old, fdl.Buildable) or old is None or old is fdl.NO_VALUE)
    if is_plain and is_unknown(find_place(target, path).hint):
        return Word("set", path, f"={text}" if "(" in text else f"={text}()")
    return Word("use", path, f"={text}")


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
