"""Values and nodes as the texts by which directives set them."""

import enum
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import fiddle as fdl

from fidgpt import errors
from fidgpt.graph import fiddle, formulas, hints, identity, values, walk

PartName = Callable[[Any], str]  # how directives call a constructor
_WORD = re.compile(r"[A-Za-z_][\w./-]*")
_RELATIVE = re.compile(r"\{before\} ([*+-]) (?:\((.*)\)|(.*))", re.DOTALL)


def spell(
    value: Any, hint: Any, part_name: PartName | None = None, *, is_item: bool = False
) -> str | None:
    """Return the text that reads as a value of type `hint`; None where there is none.

    Args:
      value: the value.
      hint: its annotation.
      part_name: how to call a constructor; None to spell no nodes.
      is_item: whether the text stands between commas.
    """
    if formulas.is_formula(value):
        return str(fiddle.set_arguments(value)["text"])
    if isinstance(value, fdl.Buildable):
        keys = fiddle.set_arguments(value)
        return part_name and call_text(value, keys, part_name, is_deep=True)
    if isinstance(value, list | tuple | dict):
        has_parts = bool(walk.parts(value))
        items = _items(value, hint, part_name if has_parts else None)
        if has_parts:
            return None if isinstance(value, tuple) else items
        texts = [repr(value), items]
    elif isinstance(value, str | pathlib.PurePath):
        text = str(value)
        texts = [repr(text)] if is_item and not _WORD.fullmatch(text) else [text, repr(text)]
    elif isinstance(value, enum.Enum):
        texts = [value.name]
    elif type(value).__module__ == "torch":
        texts = [str(value).removeprefix("torch."), str(value)]
    else:
        texts = [repr(value), str(value)]
    return next((text for text in texts if text and _reads_as(text, hint, value)), None)


def call_text(
    part: fdl.Buildable, keys: Iterable[Any], part_name: PartName, *, is_deep: bool
) -> str:
    """Return a call with the arguments, among some, that have a text and no tag.

    Args:
      part: the node to call.
      keys: the arguments.
      part_name: how to call a constructor.
      is_deep: whether inner nodes are written too, and a call without arguments with parentheses.
    """
    known, inner = fiddle.set_arguments(part), part_name if is_deep else None
    texts = {
        key: spell(known[key], hints.hint_of(part, key), inner, is_item=True)
        for key in keys
        if isinstance(key, str) and not fdl.get_tags(part, key)
    }
    arguments = ", ".join(f"{key}={text}" for key, text in texts.items() if text is not None)
    return part_name(fdl.get_callable(part)) + (f"({arguments})" if arguments or is_deep else "")


def formula_text(part: fdl.Buildable) -> str:
    """Return the sign and text that set a formula: `=...`, or `*=...` for one of its old value."""
    arguments = fiddle.set_arguments(part)
    match = _RELATIVE.fullmatch(arguments["text"])
    if match is None or "before" not in (arguments.get("values") or {}):
        return f"={arguments['text']}"
    return f"{match[1]}={match[2] or match[3]}"


def _items(value: Any, hint: Any, part_name: PartName | None) -> str | None:
    """Return a container with each item spelled by its own annotation."""

    def item(element: Any, asked: Any) -> str | None:
        if isinstance(element, str | pathlib.PurePath):
            return repr(str(element))
        text = spell(element, asked, part_name, is_item=True)
        return repr(element) if text is None and part_name is None else text

    if isinstance(value, dict):
        pairs = [
            (item(k, hints.key_hint(hint)), item(v, hints.element_hint(hint, k)))
            for k, v in value.items()
        ]
        texts = [text and f"{key}: {text}" for key, text in pairs]
    else:
        texts = [item(element, hints.element_hint(hint, i)) for i, element in enumerate(value)]
    if None in texts:
        return None
    form = {dict: "{%s}", tuple: "(%s,)"}.get(type(value), "[%s]")
    return form % ", ".join(map(str, texts))


def _reads_as(text: str, hint: Any, value: Any) -> bool:
    try:
        return identity.is_same(values.read_value(text, hint), value)
    except errors.ConfigError:
        return False
