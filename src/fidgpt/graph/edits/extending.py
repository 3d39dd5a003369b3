"""More items for the lists, tuples and dicts of a graph: `+=[Console, JSONLines]`."""

from collections.abc import Iterator
from typing import Any

from fidgpt.graph.edits.reading import Parts, Reader
from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.selecting.place import Place, describe, inside_of
from fidgpt.graph.signatures.hints import element_hint
from fidgpt.graph.structure.arguments import Key
from fidgpt.graph.typed.items import entries_in, items_in
from fidgpt.graph.typed.values import read_key

_EXAMPLES = {list: "[...]", tuple: "(..., ...)", dict: "{name: ...}"}


def can_be_extended(value: Any) -> bool:
    """Whether a value may get more items."""
    return type(value) in _EXAMPLES


def extended(root: Any, place: Place, now: Any, text: str, parts: Parts) -> Any:
    """What a place holds, and behind that the items that a text says; the same where it says none.

    Raises:
      ConfigError: the text says no items, one that does not fit, or an entry that is there.
    """
    items = dict(now) if isinstance(now, dict) else dict(enumerate(now))
    added = dict(_added(place, now, text))
    if not added:
        return now
    items |= added
    for key, one in added.items():
        hint, path = element_hint(place.hint, key), f"{place.path}[{key!r}]"
        item = Place({key: None}, key, hint, path, place.path, inside_of(place, key))
        items[key] = Reader(root, one, parts).read(item)
        item.refuse(items[key])
    return items if isinstance(now, dict) else type(now)(items.values())


def _added(place: Place, now: Any, text: str) -> Iterator[tuple[Key, str]]:
    """The texts of new items, by the keys that they get."""
    if text in ("[]", "()", "{}"):
        return
    with at(f"{place.path}+={text}"):
        if not isinstance(now, dict):
            items = items_in(text, place.hint)
            _require(items, now)
            yield from enumerate(items, len(now))
            return
        entries = entries_in(text, place.hint)
        _require(entries, now)
        for key, one in entries.items():
            if (name := read_key(key, place.hint)) in now:
                raise ConfigError(
                    f"there is an entry {name!r} already: set:{place.path}[{name!r}]=... sets it."
                )
            yield name, one


def _require(found: Any, now: Any) -> None:
    if not found:
        raise ConfigError(
            f"it is {describe(now)}, to which += adds items: write +={_EXAMPLES[type(now)]}."
        )
