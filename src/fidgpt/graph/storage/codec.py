"""Values of a graph as JSON and back: numbers, text, containers, parts, names, paths."""

import dataclasses
import enum
import functools
import inspect
import math
import operator
import pathlib
from collections.abc import Callable, Iterable, Mapping
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
        return {"enum": [name_of(type(value)), member_name(value)]}
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
        return encode_dict(value, lambda key: encode(value[key], paths))
    if isinstance(value, pathlib.PurePath):
        return {"path": str(value)}
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device"):
        return {type(value).__name__: str(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        fields = {name: encode(item, paths) for name, item in fields.items()}
        return {"object": [name_of(type(value)), fields]}
    if callable(value):
        return {"name": name_of(value)}
    raise ConfigError(
        f"{value!r:.60} of type {type(value).__name__} cannot be saved in a config: make it a "
        "fdl.Config of its constructor, or use plain values."
    )


def encode_dict(value: Mapping[Any, Any], entry: Callable[[Any], Any]) -> dict[str, Any]:
    """A dict as JSON, with the `entry` of each key; where keys are no texts, as pairs.

    Raises:
      ConfigError: a key has no form in a file.
    """
    if all(type(key) is str for key in value):
        return {"dict": {key: entry(key) for key in value}}
    return {"items": [[encode(key, {}), entry(key)] for key in value]}


def inner(written: Any) -> Iterable[Any]:
    """The values that lie in one as `encode` writes it, which may be parts."""
    if isinstance(written, list):
        return written
    if not isinstance(written, dict):
        return ()
    match [*written.items()]:
        case [("tuple", list(items))]:
            return items
        case [("dict", dict(items))]:
            return items.values()
        case [("items", list(pairs))]:
            return [one for pair in pairs if isinstance(pair, list) for one in pair]
        case [("object", [str(), dict(fields)])]:
            return fields.values()
    return ()


def member_name(member: enum.Enum) -> str:
    """The name of a member; of flags that are several, or none, those of each with | between."""
    if (name := member.name or "") in type(member).__members__:
        return name
    names = [str(one.name) for one in member] if isinstance(member, enum.Flag) else []
    if not isinstance(member, enum.Flag) or _flags(type(member), names) != member:
        raise ConfigError(f"{member!r:.60} cannot be saved in a config: not all of it has a name.")
    return "|".join(names)


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
        case [("items", list(pairs))]:
            return _from_pairs(pairs, find, refer)
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


def _from_pairs(
    pairs: list[Any], find: Callable[[str], Any], refer: Mapping[str, Callable[[str], Any]]
) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ConfigError(f"{pair!r:.80} is no key with its value.")
        key = decode(pair[0], find)
        if isinstance(key, list | dict):
            raise ConfigError(f"{key!r:.80} is no key of a dict.")
        if key in found:
            raise ConfigError(f"it says {key!r:.60} twice in one place: leave one of them.")
        found[key] = decode(pair[1], find, refer)
    return found


def _dataclass(name: str, find: Callable[[str], Any]) -> Any:
    found = find(name)
    if not (inspect.isclass(found) and dataclasses.is_dataclass(found)):
        raise ConfigError(f"{name!r:.80} is no dataclass: nothing else is made from a file.")
    return found


def _member(name: str, member: str, find: Callable[[str], Any]) -> enum.Enum:
    found = find(name)
    if not (inspect.isclass(found) and issubclass(found, enum.Enum)):
        raise ConfigError(f"{name!r:.80} is no enum.")
    if member in found.__members__:
        return found[member]
    names = member.split("|") if member else []
    if issubclass(found, enum.Flag) and all(one in found.__members__ for one in names):
        return _flags(found, names)
    raise ConfigError(f"{name} has no {member!r:.80}. {suggest(member, found.__members__)}")


def _flags(kind: type[enum.Flag], names: Iterable[str]) -> enum.Flag:
    return functools.reduce(operator.or_, (kind[name] for name in names), kind(0))


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
