"""The pieces of a list, tuple or dict as somebody types it, before any of them is read."""

import inspect
import typing
from typing import Any

from fidgpt.graph.signatures.annotations import is_unknown, members_of
from fidgpt.graph.typed.calls import split_at_commas


def items_in(text: str, hint: Any) -> list[str]:
    """The texts of the items of a list or tuple, where one may stand; none for what is neither.

    Brackets may be left out where there are several: `a, b`.
    """
    if not (_takes(list, hint) or _takes(tuple, hint)):
        return []
    inner = text.strip()
    brackets = inner[:1] + inner[-1:]
    if brackets == "[]":
        return _stripped(inner[1:-1])
    items = _stripped(inner[1:-1] if brackets == "()" else inner)
    return items if len(items) > 1 or inner.endswith(",)") else []


def entries_in(text: str, hint: Any) -> dict[str, str]:
    """The texts of a dict's values by those of its keys, where one may stand; none else."""
    inner = text.strip()
    if not _takes(dict, hint) or inner[:1] + inner[-1:] != "{}":
        return {}
    entries = [entry.partition(":") for entry in _stripped(inner[1:-1])]
    if not all(colon for _, colon, _ in entries):
        return {}
    return {key.strip(): value.strip() for key, _, value in entries}


def _takes(kind: type, hint: Any) -> bool:
    """Whether a container of Python's own may stand where a hint is asked, whatever is in it."""
    return any(_is_asked(kind, one) for one in members_of(hint))


def _is_asked(kind: type, hint: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    if is_unknown(hint) or typing.is_typeddict(origin):
        return is_unknown(hint) or kind is dict
    is_own = getattr(origin, "__module__", "") in ("builtins", "collections.abc")
    return is_own and inspect.isclass(origin) and issubclass(kind, origin)


def _stripped(text: str) -> list[str]:
    return [piece.strip() for piece in split_at_commas(text)]
