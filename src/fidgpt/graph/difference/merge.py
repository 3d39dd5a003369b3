"""Merging what two people changed in one graph."""

from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from fidgpt.graph.difference.apply import apply
from fidgpt.graph.difference.pairing import Pairing
from fidgpt.graph.difference.patch import Changes, Patch, make_patch
from fidgpt.graph.errors import raise_all
from fidgpt.graph.selecting.paths import parse_path
from fidgpt.graph.storage.walked import step_between
from fidgpt.graph.structure.arguments import Key
from fidgpt.graph.structure.walk import join

_ASPECTS = ("new", "call", "tags")


def merge(base: Any, ours: Any, theirs: Any) -> Any:
    """A graph with what two people changed in one.

    Raises:
      ConfigErrors: both changed a place in two ways, or one changed what the other took away; each
        with its path and both values.
      ConfigError: a value has no form in a file.
    """
    pairings = {"ours": Pairing(base, ours), "theirs": Pairing(base, theirs)}
    patches = {name: make_patch(pairing) for name, pairing in pairings.items()}
    told = [
        *_same_place(patches["ours"], patches["theirs"]),
        *_lost(base, patches["ours"].changes, "ours", "theirs", pairings["theirs"]),
        *_lost(base, patches["theirs"].changes, "theirs", "ours", pairings["ours"]),
        *_inside(base, patches["ours"].changes, patches["theirs"].changes, "ours", "theirs"),
        *_inside(base, patches["theirs"].changes, patches["ours"].changes, "theirs", "ours"),
    ]
    raise_all(list(dict.fromkeys(told)))
    return apply(base, _joined(patches))


def _joined(patches: dict[str, Patch]) -> Patch:
    """Both patches as one; what both did alike is done once."""
    changes: Changes = {}
    parts: Changes = {}
    known: dict[str, Any] = {}
    for name, patch in patches.items():
        for path, change in patch.changes.items():
            for aspect, value in change.items():
                changes.setdefault(path, {}).setdefault(aspect, _renamed(value, name))
        parts |= {f"{name} {path}": _renamed(part, name) for path, part in patch.parts.items()}
        known |= patch.known
    return Patch(changes, parts, known)


def _same_place(ours: Patch, theirs: Patch) -> Iterator[str]:
    for path in ours.changes.keys() & theirs.changes.keys():
        mine, other = ours.changes[path], theirs.changes[path]
        for aspect in _ASPECTS:
            if _touches(mine, aspect) and _touches(other, aspect):
                sides = _whole(mine.get(aspect), ours), _whole(other.get(aspect), theirs)
                if repr(sides[0]) != repr(sides[1]):
                    texts = [_short(one.get(aspect), aspect) for one in (mine, other)]
                    yield f"{path or 'the root'}: ours is {texts[0]}, and theirs is {texts[1]}."


def _lost(base: Any, changes: Changes, one: str, other: str, pairing: Pairing) -> Iterator[str]:
    """What one changed in a part that the other has no more."""
    for path, change in changes.items():
        for holder, where in _holders(base, path):
            if pairing.heir(holder) is None:
                texts = [_short(change.get(a), a) for a in _ASPECTS if _touches(change, a)]
                yield (
                    f"{path}: {one} is {' and '.join(texts)}, and {other} has nothing there: "
                    f"{where or 'the root'} {_fate(base, where, pairing)}."
                )
                break


def _fate(base: Any, where: str, pairing: Pairing) -> str:
    """What the new graph holds in the place of a part of the base."""
    value: Any = pairing.new.root
    for key in parse_path(where) if where else []:
        try:
            value = value.__arguments__[key] if isinstance(value, fdl.Buildable) else value[key]
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
                texts = _short(change.get("new"), "new"), _short(others[place].get("new"), "new")
                sides = f"{one} is {texts[0]}", f"{other} is {texts[1]} at {place}"
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
    held: Any = holder.__arguments__ if isinstance(holder, fdl.Buildable) else holder
    try:
        return held[key]
    except (LookupError, TypeError):
        return fdl.NO_VALUE


def _touches(change: dict[str, Any], aspect: str) -> bool:
    return aspect in change or (aspect == "new" and "old" in change)


def _renamed(value: Any, name: str) -> Any:
    """A value in which the new parts have the names that they have in the joined patch."""
    if isinstance(value, list):
        return [_renamed(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    if [*value] == ["part"]:
        return {"part": f"{name} {value['part']}"}
    return {key: _renamed(item, name) for key, item in value.items()}


def _whole(value: Any, patch: Patch) -> Any:
    """A value with its new parts written out, to compare those of two patches."""
    if isinstance(value, list):
        return [_whole(item, patch) for item in value]
    if not isinstance(value, dict):
        return value
    if [*value] == ["part"]:
        return _whole(patch.parts[value["part"]], patch)
    return {key: _whole(item, patch) for key, item in value.items()}


def _short(value: Any, aspect: str) -> str:
    if aspect == "call":
        return f"a call of {value[1]}"
    if aspect == "tags":
        return f"tagged {' and '.join(value[1]) or 'with nothing'}"
    if isinstance(value, dict) and [*value] in (["part"], ["keep"]):
        return f"the part of {next(iter(value.values()))}"
    return f"{value!r:.60}"
