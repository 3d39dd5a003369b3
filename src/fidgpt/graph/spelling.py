"""Changes as directives of the command line."""

import contextlib
import enum
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
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
from fidgpt.graph.fiddle import all_arguments, argument_tags, raw_arguments, set_arguments
from fidgpt.graph.formulas import is_formula
from fidgpt.graph.hints import element_hint, hint_of, is_unknown, key_hint
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.paths import ParameterRef, find_parameter
from fidgpt.graph.selectors import find_parameters, tags_in
from fidgpt.graph.storage.bound import PLAIN
from fidgpt.graph.values import read_value
from fidgpt.graph.walk import IS_PART, join, parts, step_to, title

_LEAVES = (PLAIN | {float}) - {type(fdl.NO_VALUE)}
Frame = dict[str, tuple[str, dict[str, str]]]


def frame_of(root: Any) -> Frame:
    """The parts whose place says which parts of another graph they stand for, by their path.

    These are reached by names, and through lists of one item. They are few, so that a frame is
    made in a fraction of the time that a comparison takes. Each has its call, and by its steps
    plain values and the calls of parts, as far as they are no matter of hearing; all as text.
    """
    frame: Frame = {}
    met: set[int] = set()
    todo: list[tuple[str, str, Any]] = [("", "", root)]
    while todo:
        above, step, node = todo.pop()
        if id(node) in met:
            continue
        if IS_PART[type(node)]:
            values, held = (
                _values(node),
                {step_to(key): one for key, one in set_arguments(node).items()},
            )
        elif type(node) is list and len(node) == 1:
            values, held = {}, {"[0]": node[0]}
        else:
            continue
        met.add(id(node))
        path, call = join(above, step), title(node) if step else ""  # the root is always compared
        frame[path] = call, values
        if step:
            frame[above][1][step] = call
        todo += [(path, key, value) for key, value in reversed(held.items())]
    return frame


def least_apart(old: Frame, new: Frame) -> int:
    """A number of differences that no comparison of two graphs stays below.

    As many places of one name that are to have one value count as one, since one directive may say
    so, no `distance` of what they differ in is less either.
    """
    found: set[tuple[str, str]] = set()
    for path, (call, values) in old.items():
        if path in new and new[path][0] == call:
            others = new[path][1]
            found |= {
                (step, others[step])
                for step, text in values.items()
                if step in others and text != others[step]
            }
    return len(found)


def _values(part: fdl.Buildable) -> dict[str, str]:
    """The plain values of a part, apart from those of parameters that may inherit another."""
    known, tags = raw_arguments(part), argument_tags(part)
    return {
        step_to(key): leaf_text(value)
        for key, value in all_arguments(part).items()
        if type(value) in _LEAVES and (key in known or not tags.get(key))
    }


PartName = Callable[[Any], str]
_WORD = re.compile(r"[A-Za-z_][\w./-]*")
_RELATIVE = re.compile(r"\{before\} ([*+-]) (.*)", re.DOTALL)


def value_text(value: Any, hint: Any) -> str | None:
    """Return the text that reads as a value of type `hint`; None where there is none."""
    kind = type(value)
    texts = [repr(value)]
    if isinstance(value, str):
        texts = [value, repr(value)]
    elif isinstance(value, enum.Enum):
        texts = [value.name]
    elif kind.__module__ == "torch":
        texts = [str(value).removeprefix("torch."), str(value)]
    elif isinstance(value, list | tuple | dict):
        texts.append(_collected(value, hint))
    elif not isinstance(value, int | float | None):
        texts = [str(value)]
    return next((text for text in texts if _means(text, hint, value)), None)


def call_text(part: fdl.Buildable, keys: Iterable[Any], part_name: PartName, *, deep: bool) -> str:
    """Return a call with those of some arguments that have a text; tagged ones are left out.

    Args:
      part: what is called.
      keys: the arguments.
      part_name: how to call a constructor.
      deep: whether parts inside are written too, and a call without arguments with its
        parentheses.
    """
    known = set_arguments(part)
    arguments = [
        f"{key}={text}"
        for key in keys
        if isinstance(key, str) and not fdl.get_tags(part, key)
        if (text := _argument_text(known[key], hint_of(part, key), part_name, deep)) is not None
    ]
    call = f"({', '.join(arguments)})" if arguments or deep else ""
    return f"{part_name(fdl.get_callable(part))}{call}"


def inner_text(value: Any, hint: Any, part_name: PartName) -> str | None:
    """Return the text of a list or dict with parts, or of a plain value; None without one."""
    if isinstance(value, fdl.Buildable) or not parts(value):
        return _argument_text(value, hint, part_name, deep=True)
    if isinstance(value, list):
        texts = [inner_text(one, element_hint(hint, i), part_name) for i, one in enumerate(value)]
        return None if None in texts else f"[{', '.join(map(str, texts))}]"
    if not isinstance(value, dict):
        return None
    entries = [
        (key, inner_text(one, element_hint(hint, key), part_name)) for key, one in value.items()
    ]
    if any(text is None for _, text in entries):
        return None
    return "{" + ", ".join(f"{key!r}: {text}" for key, text in entries) + "}"


def _collected(value: Any, hint: Any) -> str:
    """A list, tuple or dict of what has a name where its items are asked, such as an enum."""
    if isinstance(value, dict):
        pairs = [
            (_item_text(key, key_hint(hint)), _item_text(one, element_hint(hint, key)))
            for key, one in value.items()
        ]
        return "{" + ", ".join(f"{key}: {text}" for key, text in pairs) + "}"
    texts = [_item_text(one, element_hint(hint, i)) for i, one in enumerate(value)]
    return f"({', '.join(texts)},)" if isinstance(value, tuple) else f"[{', '.join(texts)}]"


def _item_text(value: Any, hint: Any) -> str:
    if isinstance(value, str | pathlib.PurePath):  # which may have commas in it
        return repr(str(value))
    return value_text(value, hint) or repr(value)


def formula_text(part: fdl.Buildable) -> str:
    """The sign and what follows it for a formula: `=` and all of it, or how what was is changed."""
    text = set_arguments(part)["text"]
    relative = (
        _RELATIVE.fullmatch(text) if "before" in (set_arguments(part).get("values") or {}) else None
    )
    if relative is None:
        return f"={text}"
    amount = relative[2]
    is_wrapped = amount.startswith("(") and amount.endswith(")")
    return f"{relative[1]}={amount[1:-1] if is_wrapped else amount}"


def _argument_text(value: Any, hint: Any, part_name: PartName, deep: bool) -> str | None:
    """A value between commas; a part only where all is written."""
    if is_formula(value):
        return str(set_arguments(value)["text"])
    if isinstance(value, fdl.Buildable):
        return call_text(value, set_arguments(value), part_name, deep=True) if deep else None
    if deep and parts(value):
        return inner_text(value, hint, part_name)
    if isinstance(value, str) and not _WORD.fullmatch(value):
        return repr(value)
    return value_text(value, hint)


def _means(text: str, hint: Any, value: Any) -> bool:
    try:
        read = read_value(text, hint)
    except ConfigError:
        return False
    return type(read) is type(value) and repr(read) == repr(value)


_ITEM = re.compile(r"\[\d+\]$")
_INDEX = re.compile(r"\[\d+\]")
_WITHOUT_DIRECTIVE = 3


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

    Where one directive covers a whole group, it comes first; otherwise there is
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


def has_directive(change: Change) -> bool:
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
    """Return about how many directives make some changes: one sets many places to one value."""
    return sum({_gist(change): _at_least(change) for change in changes}.values())


def _at_least(change: Change) -> int:
    return 1 if has_directive(change) else _WITHOUT_DIRECTIVE


def _gist(change: Change) -> tuple[str, ...]:
    if isinstance(change, ValueChanged):
        return re.split(r"[.\]]", change.path)[-1], repr(change.new.value)
    if not has_directive(change):
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
    if not has_directive(change):
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
        value = find_parameter(target, path).value if path else fdl.NO_VALUE
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
            place = find_parameter(target, path)
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
    if new.is_default or new.inherited_from or new.value is fdl.NO_VALUE:
        return Word("del", path)
    text = new.value if isinstance(new.value, str) else value_text(new.value, type(new.value))
    return None if text is None else Word("set", path, f"={text}")


def _part(target: Any, change: Change, path: str, part_name: PartName, deep: bool) -> Word:
    """Puts a part in a place: by `use:`, unless a plain value stands where anything may."""
    part, old = change.new.value, change.old.value
    if is_formula(part):
        return Word("set", path, formula_text(part))
    kept = set_arguments(old) if isinstance(old, fdl.Buildable) else {}
    known = set_arguments(part)
    keys = [key for key in known if key not in kept or repr(kept[key]) != repr(known[key])]
    text = call_text(part, keys, part_name, deep=deep)
    is_plain = not (isinstance(old, fdl.Buildable) or old is None or old is fdl.NO_VALUE)
    if is_plain and is_unknown(find_parameter(target, path).hint):
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
        called = title(find_parameter(root, first.path).container)
    except ConfigError:  # a place in a part that another directive puts there
        return
    for tag in sorted(_tags_at(root, first.path)) if first.kind == "set" else []:
        yield Word("tag", tag, first.rest)
    yield Word(first.kind, _INDEX.sub("[*]", first.path), first.rest)
    name = first.path.rpartition(".")[2]
    yield Word(first.kind, f"**.{name}", first.rest)
    yield Word(first.kind, f":{called}.{name}", first.rest)


def _tags_at(root: Any, path: str) -> list[str]:
    place = find_parameter(root, path)
    if not isinstance(place.container, fdl.Buildable) or place.key not in all_arguments(
        place.container
    ):
        return []
    return [tag.__name__ for tag in fdl.get_tags(place.container, place.key)]


def _places(root: Any, word: Word) -> set[str]:
    try:
        found = _of_tag(root, word.path) if word.kind == "tag" else find_parameters(root, word.path)
    except ConfigError:
        return set()
    return {place.path for place in found}


def _of_tag(root: Any, name: str) -> list[ParameterRef]:
    return find_parameters(root, tags_in(root)[name])
