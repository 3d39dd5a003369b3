"""Values of a graph as JSON and back: numbers, text, containers, parts, names, paths."""

import dataclasses
import enum
import inspect
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError, suggest
from fidgpt.graph.storage.names import name_of
from fidgpt.graph.structure.walk import title

_NOTHING: Mapping[str, Callable[[str], Any]] = {}


def encode(value: Any, paths: Mapping[int, str]) -> Any:
    """A value as JSON; a part as the path that `paths` has for its identity.

    What JSON has no word for becomes an object with one key, which says what it is.

    Raises:
      ConfigError: the value has no form in a file.
    """
    if isinstance(value, enum.Enum):
        return {"enum": [name_of(type(value)), value.name]}
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, fdl.Buildable):
        if id(value) not in paths:
            raise ConfigError(f"a {title(value)} lies where parts are not built, so not saved.")
        return {"part": paths[id(value)]}
    if type(value) is list:
        return [encode(item, paths) for item in value]
    if type(value) is tuple:
        return {"tuple": [encode(item, paths) for item in value]}
    if type(value) is dict:
        return {"dict": _encode_items(value, paths)}
    if isinstance(value, pathlib.PurePath):
        return {"path": str(value)}
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device"):
        return {type(value).__name__: str(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        return {"object": [name_of(type(value)), _encode_items(fields, paths)]}
    if callable(value):
        return {"name": name_of(value)}
    raise ConfigError(
        f"{value!r:.60} of type {type(value).__name__} cannot be saved in a config: make it a "
        "fdl.Config of its constructor, or use plain values."
    )


def encode_default(value: Any) -> Any:
    """A default as JSON; of one that has no form in a file, only its type."""
    try:
        return encode(value, {})
    except ConfigError:
        return {"default": type(value).__name__}


def decode(
    value: Any, find: Callable[[str], Any], refer: Mapping[str, Callable[[str], Any]] = _NOTHING
) -> Any:
    """The value that `encode` wrote.

    Args:
      value: what stands in the file.
      find: gives the class or function of a name.
      refer: gives the part that `{word: path}` stands for, by the word; parts may stand in lists,
        tuples and dicts, and nowhere else.

    Raises:
      ConfigError: it is none.
    """
    if isinstance(value, list):
        return [decode(item, find, refer) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(word, path)] = value.items()
        if word in refer and isinstance(path, str):
            return refer[word](path)
    match [*value.items()]:
        case [("tuple", list(items))]:
            return tuple(decode(item, find, refer) for item in items)
        case [("dict", dict(items))]:
            return {key: decode(item, find, refer) for key, item in items.items()}
        case [("float", "inf" | "-inf" | "nan" as text)]:
            return float(text)
        case [("path", str(text))]:
            return pathlib.Path(text)
        case [("name", str(name))]:
            return find(name)
        case [("object", [str(name), dict(fields)])]:
            held = {key: decode(item, find) for key, item in fields.items()}
            return _dataclass(name, find)(**held)
        case [("enum", [str(name), str(member)])]:
            return _member(name, member, find)
        case [("dtype", str(text))]:
            return _dtype(text)
        case [("device", str(text))]:
            return _device(text)
    raise ConfigError(f"{value!r:.80} is no kind of value.")


def _encode_items(value: dict[Any, Any], paths: Mapping[int, str]) -> dict[str, Any]:
    for key in value:
        if type(key) is not str:
            raise ConfigError(f"the dict key {key!r} cannot be saved in a config: use a string.")
    return {key: encode(item, paths) for key, item in value.items()}


def _dataclass(name: str, find: Callable[[str], Any]) -> Any:
    found = find(name)
    if not (inspect.isclass(found) and dataclasses.is_dataclass(found)):
        raise ConfigError(f"{name!r:.80} is no dataclass: nothing else is made from a file.")
    return found


def _member(name: str, member: str, find: Callable[[str], Any]) -> enum.Enum:
    found = find(name)
    if not (inspect.isclass(found) and issubclass(found, enum.Enum)):
        raise ConfigError(f"{name!r:.80} is no enum.")
    if member not in found.__members__:
        raise ConfigError(f"{name} has no {member!r:.80}. {suggest(member, found.__members__)}")
    return found[member]


def _dtype(text: str) -> Any:
    import torch  # only a file that names a dtype or device needs it

    found = vars(torch).get(text.removeprefix("torch."))  # getattr would import what it asks for
    if not isinstance(found, torch.dtype):
        raise ConfigError(f"{text!r:.80} is no dtype of torch.")
    return found


def _device(text: str) -> Any:
    import torch  # as above

    try:
        return torch.device(text)
    except RuntimeError:
        raise ConfigError(f"{text!r:.80} is no device of torch.") from None
