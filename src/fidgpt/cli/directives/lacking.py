"""An entry that a list, tuple or dict lacks: how to add it."""

from typing import Any

from fidgpt.cli.catalogue.catalogue import Catalogue
from fidgpt.cli.directives import changes
from fidgpt.cli.directives.spelling import split_directive
from fidgpt.graph import ConfigError, clone, find_place
from fidgpt.graph.edits import change_by
from fidgpt.graph.selecting.paths import key_at

_SETTING = ("set", "use")


def remedy(root: Any, place: str, directive: str, catalogue: Catalogue) -> str:
    """What would add the entry that a directive sets and `place` lacks; "" where nothing would."""
    kind, rest = split_directive(directive)
    if kind not in _SETTING:
        return ""
    try:
        path, sign, value = changes.assignment(rest, "")
        key, end = key_at(path, len(place)) if path.startswith(place) else ("", 0)
        if sign or end != len(path):  # what is to be set lies deeper
            return ""
        container = find_place(root, place).value
        items = _items(container, key, value)
        change_by(clone(root), place, "+", items, parts=catalogue.parts)
    except ConfigError:  # it would not fit there either
        return ""
    is_short = len(value.split()) == 1
    return f"\nTo add one, say set:{place}+={items if is_short else _items(container, key, '...')}"


def _items(container: Any, key: Any, value: str) -> str:
    if isinstance(container, dict):
        return f"{{{key!r}:{value}}}"
    return f"[{value}]" if isinstance(container, list) else f"({value},)"
