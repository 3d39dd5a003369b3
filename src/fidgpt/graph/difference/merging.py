"""Merging what two people changed in one graph."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import fiddle as fdl

from fidgpt.graph.difference.applying import apply
from fidgpt.graph.difference.comparison import Comparison
from fidgpt.graph.difference.patches import Changes, Patch, make_patch, pair, step_between
from fidgpt.graph.errors import raise_all
from fidgpt.graph.fiddle import Key, raw_arguments
from fidgpt.graph.paths import parse_path
from fidgpt.graph.walk import join

_ASPECTS = ("new", "call", "tags")


def merge(base: Any, ours: Any, theirs: Any) -> Any:
    """A graph with what two people changed in one.

    Raises:
      ConfigErrors: both changed a place in two ways, or one changed what the other took away; each
        with its path and both values.
      ConfigError: a value has no form in a file.
    """
    pairings = {"ours": pair(base, ours), "theirs": pair(base, theirs)}
    patches = {name: make_patch(pairing) for name, pairing in pairings.items()}
    conflicts = [
        *_same_place(patches["ours"], patches["theirs"]),
        *_lost(base, patches["ours"].changes, "ours", "theirs", pairings["theirs"]),
        *_lost(base, patches["theirs"].changes, "theirs", "ours", pairings["ours"]),
        *_inside(base, patches["ours"].changes, patches["theirs"].changes, "ours", "theirs"),
        *_inside(base, patches["theirs"].changes, patches["ours"].changes, "theirs", "ours"),
    ]
    raise_all(list(dict.fromkeys(conflicts)))
    return apply(base, _joined(patches))


def _joined(patches: dict[str, Patch]) -> Patch:
    """Both patches as one; what both did alike is done once."""
    changes: Changes = {}
    parts: Changes = {}
    known: dict[str, Any] = {}
    for name, patch in patches.items():
        rename = partial(_named, name)
        for path, change in patch.changes.items():
            for aspect, value in change.items():
                made = _with_parts(value, rename) if aspect == "new" else value
                changes.setdefault(path, {}).setdefault(aspect, made)
        parts |= {f"{name} {path}": _entry(part, rename) for path, part in patch.parts.items()}
        known |= patch.known
    return Patch(changes, parts, known)


def _same_place(ours: Patch, theirs: Patch) -> Iterator[str]:
    for path in (one for one in ours.changes if one in theirs.changes):
        mine, other = ours.changes[path], theirs.changes[path]
        for aspect in _ASPECTS:
            if _touches(mine, aspect) and _touches(other, aspect):
                sides = _whole(_made(mine, aspect), ours), _whole(_made(other, aspect), theirs)
                if repr(sides[0]) != repr(sides[1]):
                    texts = [_short(_made(one, aspect), aspect) for one in (mine, other)]
                    yield f"{path or 'the root'}: ours is {texts[0]}, and theirs is {texts[1]}."


def _lost(base: Any, changes: Changes, one: str, other: str, pairing: Comparison) -> Iterator[str]:
    """What one changed in a part that the other has no more."""
    for path, change in changes.items():
        for holder, where in _holders(base, path):
            if type(pairing.heir(holder)) is not type(holder):
                yield (
                    f"{path}: {one} is {_describe(change)}, and {other} has nothing there: "
                    f"{where or 'the root'} {_fate(base, where, pairing)}."
                )
                break


def _fate(base: Any, where: str, pairing: Comparison) -> str:
    """What the new graph holds in the place of a part of the base."""
    value: Any = pairing.new.root
    for key in parse_path(where) if where else []:
        try:
            value = raw_arguments(value)[key] if isinstance(value, fdl.Buildable) else value[key]
        except (LookupError, TypeError):
            return "is gone"
    return f"is {value!r:.60}" if not isinstance(value, fdl.Buildable) else "is another part"


def _inside(base: Any, changes: Changes, others: Changes, one: str, other: str) -> Iterator[str]:
    """What one changed in a list that the other changed as a whole."""
    whole = {path for path, change in others.items() if _touches(change, "new")}
    for path, change in changes.items():
        place = ""
        for key, holder in _steps(base, path):
            place = join(place, step_between(holder, key))
            if place in whole and place != path and not isinstance(_at(holder, key), fdl.Buildable):
                sides = (
                    f"{one} is {_describe(change)}",
                    f"{other} is {_describe(others[place])} at {place}",
                )
                yield f"{path}: {', and '.join(sides)}."


def _holders(base: Any, path: str) -> Iterator[tuple[Any, str]]:
    """The parts on the way to a place, from the root down, each with its path."""
    place = ""
    for key, holder in _steps(base, path):
        if isinstance(holder, fdl.Buildable):
            yield holder, place
        place = join(place, step_between(holder, key))


def _steps(base: Any, path: str) -> Iterator[tuple[Key, Any]]:
    value = base
    for key in parse_path(path) if path else []:
        yield key, value
        value = _at(value, key)


def _at(holder: Any, key: Key) -> Any:
    held: Any = raw_arguments(holder) if isinstance(holder, fdl.Buildable) else holder
    try:
        return held[key]
    except (LookupError, TypeError):
        return fdl.NO_VALUE


def _touches(change: dict[str, Any], aspect: str) -> bool:
    return aspect in change or (aspect == "new" and "old" in change)


def _made(change: dict[str, Any], aspect: str) -> Any:
    """What a change makes of an aspect of its place; nothing, and not None, where it takes away."""
    return change.get(aspect, fdl.NO_VALUE)


def _describe(change: dict[str, Any]) -> str:
    return " and ".join(_short(_made(change, a), a) for a in _ASPECTS if _touches(change, a))


def _named(name: str, path: str) -> Any:
    """A new part under the name that it has in the joined patch."""
    return {"part": f"{name} {path}"}


def _whole(value: Any, patch: Patch) -> Any:
    """A value with its new parts written out, to compare those of two patches."""

    def written_out(path: str) -> Any:
        return _entry(patch.parts[path], written_out)

    return _with_parts(value, written_out)


def _entry(part: dict[str, Any], change: Callable[[str], Any]) -> dict[str, Any]:
    arguments = {key: _with_parts(value, change) for key, value in part["set"].items()}
    return {**part, "set": arguments}


def _with_parts(value: Any, change: Callable[[str], Any]) -> Any:
    """A value with what `change` gives for the path of each new part in it."""
    if isinstance(value, list):
        return [_with_parts(item, change) for item in value]
    if not isinstance(value, dict):
        return value
    if [*value] == ["part"]:
        return change(value["part"])
    if [*value] == ["dict"]:
        return {"dict": {key: _with_parts(item, change) for key, item in value["dict"].items()}}
    return {key: _with_parts(item, change) for key, item in value.items()}


def _short(value: Any, aspect: str) -> str:
    if aspect == "call":
        return f"a call of {value[1]}"
    if aspect == "tags":
        return f"tagged {' and '.join(value[1]) or 'with nothing'}"
    if value is fdl.NO_VALUE:
        return "not set"
    if isinstance(value, dict) and [*value] in (["part"], ["keep"]):
        return f"the part of {next(iter(value.values()))}"
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return f"[{', '.join(map(_item, value)):.100}]"
    return f"{value!r:.60}"


def _item(value: Any) -> str:
    """An item of a list in which parts stand: one that was there by its place, and new ones."""
    if isinstance(value, dict) and [*value] == ["keep"]:
        return str(value["keep"])
    return "another part" if isinstance(value, dict) else f"{value!r:.60}"
