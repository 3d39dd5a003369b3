"""Single values of a graph as a `_target_` tree says them."""

import enum
import inspect
import pathlib
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph import ConfigError
from fidgpt.graph.selecting.paths import describe
from fidgpt.graph.structure.arguments import given
from fidgpt.interop.targets.names import dotted_name
from fidgpt.interop.targets.reading import fitting
from fidgpt.interop.targets.references import escaped
from fidgpt.interop.targets.tree import DEEPEST


def written_value(value: Any) -> Any:
    """A value that is no part, list or dict, as plain data.

    Raises:
      ConfigError: a file has no form for it.
    """
    said = _said(value)
    if said is None or isinstance(said, bool | int | float):
        return said
    if not isinstance(said, str):
        kind = "class" if inspect.isclass(said) else "object"
        return {"_target_": f"hydra.utils.get_{kind}", "path": dotted_name(said)}
    if said == "???":
        raise ConfigError("the text ??? cannot be written: it would say that a value is missing.")
    return escaped(said)


def require_readable(value: Any, hint: Any) -> None:
    """Says why an argument would not be read back as it is.

    Raises:
      ConfigError: its annotation does not bring it back, or it has no form in a file.
    """
    read = fitting(_said_of_all(value, 0), hint)
    if not _is_same(read, value):
        raise ConfigError(
            f"{describe(value)} would be read back as {describe(read)}: annotate the argument, or "
            "use what YAML has, such as a list for a tuple."
        )


def _said(value: Any) -> Any:
    """What a file says for a value: a word for an enum or a path, the thing itself for others."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value)
    if value is None or type(value) in (bool, int, float, str) or callable(value):
        return value
    raise ConfigError(
        f"{describe(value)} cannot be written: make it a fdl.Config of its constructor, or use "
        "plain values."
    )


def _said_of_all(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise ConfigError(f"lists and dicts lie more than {DEEPEST} deep in each other.")
    if isinstance(value, TaggedValueCls):
        value = given(value)["value"]
    if isinstance(value, fdl.Buildable):
        return value
    if isinstance(value, dict):
        return {key: _said_of_all(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_said_of_all(item, depth + 1) for item in value]
    return _said(value)


def _is_same(read: Any, value: Any) -> bool:
    """Whether what is read is of the same kind throughout; 1.0 is not 1, nor a list a tuple."""
    if isinstance(value, TaggedValueCls):
        value = given(value)["value"]
    if type(read) is not type(value):
        return False
    if isinstance(value, dict):
        return [*read] == [*value] and all(_is_same(read[key], value[key]) for key in value)
    if isinstance(value, list | tuple):
        return len(read) == len(value) and all(map(_is_same, read, value))
    return read is value or (not isinstance(value, fdl.Buildable) and repr(read) == repr(value))
