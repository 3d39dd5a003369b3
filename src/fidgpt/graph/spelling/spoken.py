"""What one would type for a value or a part, where some text says it."""

import enum
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError
from fidgpt.graph.signatures.hints import element_hint, hint_of, key_hint
from fidgpt.graph.structure.arguments import given
from fidgpt.graph.structure.walk import parts
from fidgpt.graph.typed.formula import is_formula
from fidgpt.graph.typed.values import read_value

PartName = Callable[[Any], str]
_WORD = re.compile(r"[A-Za-z_][\w./-]*")
_RELATIVE = re.compile(r"\{before\} ([*+-]) (.*)", re.DOTALL)


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
    elif isinstance(value, list | tuple | dict):
        texts.append(_collected(value, hint))
    elif not isinstance(value, int | float | None):
        texts = [str(value)]
    return next((text for text in texts if _means(text, hint, value)), None)


def call_text(part: fdl.Buildable, keys: Iterable[Any], part_name: PartName, *, deep: bool) -> str:
    """A call with those of some arguments that a text says; quantities are left to be heard.

    Args:
      part: what is called.
      keys: the arguments.
      part_name: how to call a constructor.
      deep: whether parts inside are written too, and a call without arguments with its
        parentheses.
    """
    known = given(part)
    arguments = [
        f"{key}={text}"
        for key in keys
        if isinstance(key, str) and not fdl.get_tags(part, key)
        if (text := _argument_text(known[key], hint_of(part, key), part_name, deep)) is not None
    ]
    call = f"({', '.join(arguments)})" if arguments or deep else ""
    return f"{part_name(fdl.get_callable(part))}{call}"


def inner_text(value: Any, hint: Any, part_name: PartName) -> str | None:
    """A list or dict with parts in it, or a plain value; None where no text says it."""
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
    text = given(part)["text"]
    relative = _RELATIVE.fullmatch(text) if "before" in (given(part).get("values") or {}) else None
    if relative is None:
        return f"={text}"
    amount = relative[2]
    is_wrapped = amount.startswith("(") and amount.endswith(")")
    return f"{relative[1]}={amount[1:-1] if is_wrapped else amount}"


def _argument_text(value: Any, hint: Any, part_name: PartName, deep: bool) -> str | None:
    """A value between commas; a part only where all is written."""
    if is_formula(value):
        return str(given(value)["text"])
    if isinstance(value, fdl.Buildable):
        return call_text(value, given(value), part_name, deep=True) if deep else None
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
