"""Three-way merge of graphs."""

from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from fidgpt.graph.difference.comparison import Comparison
from fidgpt.graph.difference.patches import (
    Entries,
    Patch,
    apply_all,
    held,
    keys_of,
    make_patch,
    pair,
)
from fidgpt.graph.errors import raise_all
from fidgpt.graph.fiddle import kind_of
from fidgpt.graph.walk import IS_PART, join, step_to

_ASPECTS = ("new", "call", "tags")


def merge(base: Any, ours: Any, theirs: Any) -> Any:
    """Return a graph with what two people changed in one.

    Raises:
      ConfigErrors: both changed a place in two ways, or one changed what the other took away; each
        with its path and both values.
      ConfigError: a value has no form in a file.
    """
    comparisons = [pair(base, ours), pair(base, theirs)]
    patches = [make_patch(comparison) for comparison in comparisons]
    conflicts = [
        *_same_place(*patches),
        *_replaced_around(comparisons[1], patches, ("ours", "theirs")),
        *_replaced_around(comparisons[0], patches[::-1], ("theirs", "ours")),
    ]
    raise_all(list(dict.fromkeys(conflicts)))
    return apply_all(base, patches)


def _same_place(ours: Patch, theirs: Patch) -> Iterator[str]:
    """Yield the places that both changed in two ways."""
    for path, change in ours.changes.items():
        other = theirs.changes.get(path, {})
        for aspect in _ASPECTS:
            if _touches(change, aspect) and _touches(other, aspect):
                values = [one.get(aspect, fdl.NO_VALUE) for one in (change, other)]
                if _written_out(values[0], ours.parts) != _written_out(values[1], theirs.parts):
                    texts = [_short(value, aspect) for value in values]
                    yield f"{path or 'the root'}: ours is {texts[0]}, and theirs is {texts[1]}."


def _replaced_around(
    comparison: Comparison, patches: list[Patch], names: tuple[str, str]
) -> Iterator[str]:
    """Yield the changes inside of a node or list that the other graph has no more.

    Args:
      comparison: of the base and the other graph.
      patches: what was changed, and what the other one changed.
      names: who they are.
    """
    patch, other = patches
    for path, change in patch.changes.items():
        value, place = comparison.old.root, ""
        for key in keys_of(path):
            is_part = IS_PART[type(value)]
            is_kept = is_part and kind_of(comparison.heir(value)) is kind_of(value)
            if not is_kept and (is_part or _touches(other.changes.get(place, {}), "new")):
                now = _describe(other.changes.get(place, {})) or "without it"
                yield (
                    f"{path}: {names[0]} is {_describe(change)}, and {names[1]} is {now} at "
                    f"{place or 'the root'}."
                )
                break
            place = join(place, step_to(key) if is_part else f"[{key!r}]")
            value = held(value, key)


def _touches(change: Any, aspect: str) -> bool:
    return aspect in change or (aspect == "new" and "old" in change)


def _written_out(value: Any, parts: Entries) -> str:
    """Return a value with its new nodes written out, to compare those of two patches."""
    if isinstance(value, list):
        return f"[{[_written_out(item, parts) for item in value]}]"
    if not isinstance(value, dict):
        return repr(value)
    if [*value] == ["part"]:
        entry = parts[value["part"]]
        return _written_out({**entry, "set": {"dict": entry["set"]}}, parts)
    if [*value] == ["dict"]:  # whose keys are those of the user
        value = value["dict"]
        return f"dict{[(key, _written_out(item, parts)) for key, item in value.items()]}"
    return f"{[(key, _written_out(item, parts)) for key, item in value.items()]}"


def _describe(change: Any) -> str:
    touched = [aspect for aspect in _ASPECTS if _touches(change, aspect)]
    return " and ".join(_short(change.get(one, fdl.NO_VALUE), one) for one in touched)


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
    """Return an item of a list: an old node by its path, a new one as such."""
    if isinstance(value, dict):
        return str(value.get("keep", "another part"))
    return f"{value!r:.60}"
