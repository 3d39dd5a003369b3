"""Values and callables as JSON, and back; when two values are the same."""

import builtins
import contextlib
import dataclasses
import enum
import functools
import importlib
import inspect
import json
import math
import pathlib
import sys
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.errors import ConfigError, suggest
from fidgpt.graph import fiddle
from fidgpt.graph.walk import LEAVES, is_node, parts, title
from fidgpt.late import exports

# A file is data. It may name what fidgpt exports for use in configs, and torch's own modules and
# optimizers; any other name is refused before anything is imported.
PACKAGES = ("configs", "data", "fiddlers", "model", "optim", "parallel", "tags", "train")
# Of other packages only these: what a graph itself needs, and what reads a model's weights.
SINGLE = ("graph:formula", "interop:load_hf")
TORCH_MODULES = ("torch.nn", "torch.optim", "torch.optim.lr_scheduler")

Find = Callable[[str], Any]  # returns the class or function of a name
Refer = Mapping[str, Callable[[str], Any]]  # by word, returns the node for {word: path}
_NO_REFERENCES: Refer = {}
to_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode


def renamed(owner: Any) -> Mapping[str, str]:
    """Return the former names that a constructor or package declares, with their successors."""
    names = declared(owner, "RENAMED")
    for _ in names:  # a successor may have been renamed too
        names = {old: names.get(new, new) for old, new in names.items()}
    return names


def declared(owner: Any, name: str) -> Mapping[str, Any]:
    """Return what a constructor or package declares as `RENAMED` or `REMOVED`; else nothing."""
    table = getattr(owner, name, None)
    return table if isinstance(table, Mapping) else {}


def migrated(
    function: Any, names: Collection[Any], written: Mapping[str, Any], *, is_value: bool = False
) -> tuple[Mapping[str, Any], list[str]]:
    """Return the arguments of an old file under the names of today, and what was changed.

    Args:
      function: the constructor, which declares its former parameters as `RENAMED` and `REMOVED`.
      names: its parameters.
      written: the arguments by the names in the file.
      is_value: whether they are values; values of removed parameters must mean what is built now.

    Raises:
      ConfigError: a removed parameter had another value.
    """
    new_names, removed = renamed(function), declared(function, "REMOVED")
    if not (new_names or removed):
        return written, []
    current: dict[str, Any] = {}
    changes: list[str] = []
    for name, value in written.items():
        if name in new_names and name not in names:
            current[new_names[name]] = value
            changes.append(f"{name} was renamed to {new_names[name]}")
        elif name in removed and name not in names:
            kept = removed[name]
            if is_value and (type(value) is not type(kept) or value != kept):
                raise ConfigError(
                    f"{name} was {value!r:.60}, but is removed: the build now behaves as with "
                    f"{kept!r:.60}."
                )
            changes.append(f"{name} is removed; was {kept!r:.60}, as built now")
        else:
            current[name] = value
    return current, changes


def name_of(thing: Any) -> str:
    """Return the name `module:qualname` under which a file refers to a class or function.

    What a package of fidgpt exports is named by the package, so that moving it within the package
    changes neither files nor fingerprints.

    Raises:
      ConfigError: it has no such name, because it was defined inside a function, in a notebook or
        a script, or is neither a class nor a function.
    """
    module = getattr(thing, "__module__", None)
    qualname = getattr(thing, "__qualname__", None)
    if not module or not qualname or "<" in qualname or module == "__main__":
        raise ConfigError(
            f"{qualname or repr(thing):.80} cannot be saved by name: define it at the top of a "
            "module that can be imported."
        )
    value: Any = sys.modules.get(module)
    for part in qualname.split("."):
        value = getattr(value, part, None)
    if value is not thing and value != thing:  # a method of an instance, or a wrapped function
        raise ConfigError(
            f"{qualname} cannot be saved by name: {module}.{qualname} is something else."
        )
    return f"{home_of(thing)}:{qualname}"


def home_of(thing: Any) -> str:
    """Return the package of fidgpt that exports a class or function, or else its module."""
    module, qualname = thing.__module__ or "builtins", thing.__qualname__
    package = ".".join(module.split(".")[:2])
    top, _, name = package.partition(".")
    if top == "fidgpt" and (name in PACKAGES or f"{name}:{qualname}" in SINGLE):
        holder = sys.modules[package]
        is_exported = qualname in getattr(holder, "__all__", vars(holder))
        if is_exported and getattr(holder, qualname, None) is thing:
            return package
    return module


def shortest(module: str, head: str) -> str:
    """Return the outermost package that has the very object that a module calls `head`."""
    thing = vars(sys.modules.get(module, builtins)).get(head)
    steps = module.split(".")
    for end in range(1, len(steps)):
        outer = ".".join(steps[:end])
        if vars(sys.modules.get(outer, builtins)).get(head) is thing:
            return outer
    return module


def find_name(name: str, *, allowed: tuple[str, ...] = ()) -> Any:
    """Return the class or function of a name, if a file may refer to it.

    Args:
      name: `module:qualname`.
      allowed: packages of the user's own from which anything may be named.

    Raises:
      ConfigError: the name is not allowed, or does not exist.
    """
    module, _, qualname = name.partition(":")
    top, _, rest = module.partition(".")
    package = rest.partition(".")[0]
    if _is_within(module, allowed):
        return _imported(name, module, qualname, allowed)
    if top == "fidgpt" and (package in PACKAGES or f"{package}:{qualname}" in SINGLE):
        return _exported(name, package, qualname)
    if _is_within(module, TORCH_MODULES):
        packages = [vars(importlib.import_module(package)) for package in TORCH_MODULES]
        value = next((names[qualname] for names in packages if qualname in names), None)
        if inspect.isclass(value) and value.__module__ == module:  # not what their files import
            return value
        raise ConfigError(
            f"{name!r:.80} is refused: torch has no module or optimizer of that name."
        )
    raise ConfigError(
        f"{name!r:.80} is refused: a config file may name what fidgpt exports, modules of "
        f"torch.nn, optimizers of torch.optim, and packages that you allow: --allow=PACKAGE"
    )


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _exported(name: str, package: str, qualname: str) -> Any:
    """Return an export of a package of fidgpt, in whichever of its files it is defined today."""
    holder = importlib.import_module(f"fidgpt.{package}")
    exported = exports(holder)
    if package == "tags":
        exported = {key: value for key, value in vars(holder).items() if is_tag(value)}
    qualname = renamed(holder).get(qualname, qualname)
    if qualname not in exported:
        raise ConfigError(
            f"{name!r:.80} is refused: fidgpt.{package} does not export it. "
            f"{suggest(qualname, exported)}"
        )
    return exported[qualname]


def _imported(name: str, module: str, qualname: str, allowed: tuple[str, ...]) -> Any:
    try:
        value: Any = importlib.import_module(module)
    except Exception as error:  # whatever the user's own package raises
        raise ConfigError(f"{module} cannot be imported for {name!r}: {error}") from error
    for part in renamed(value).get(qualname, qualname).split("."):
        known = [name for name in getattr(value, "__dict__", ()) if name[:1] != "_"]
        value = getattr(value, part, None)
        if value is None or isinstance(value, types.ModuleType):
            raise ConfigError(f"there is no {name!r:.80}. {suggest(qualname, known)}")
    made = value
    while isinstance(made, functools.partial):
        made = made.func
    origin = getattr(made, "__module__", None) or "an unknown place"
    if not _is_within(origin, allowed):
        raise ConfigError(
            f"{name!r:.80} is refused: it comes from {origin:.80}, a package to be allowed itself."
        )
    return value


def is_tag(value: Any) -> bool:
    """Return whether a value is the tag of a quantity."""
    return isinstance(value, type) and issubclass(value, fdl.Tag) and value is not fdl.Tag


def find_tag(name: str, find: Find) -> Any:
    """Return the tag of a name.

    Raises:
      ConfigError: the name belongs to something else.
    """
    tag = find(name)
    if not is_tag(tag):
        raise ConfigError(f"{name!r:.80} is not a tag.")
    return tag


def _refuse(part: fdl.Buildable) -> Any:
    raise ConfigError(f"a {title(part)} is where components are not built, so it cannot be saved.")


def encode(value: Any, refer: Callable[[fdl.Buildable], Any] = _refuse) -> Any:
    """Return a value as JSON. What JSON cannot express becomes an object with one key, its kind.

    Args:
      value: a leaf, a container or a node.
      refer: returns the JSON of a node in a list, tuple or dict, or of the value itself.

    Raises:
      ConfigError: the value has no form in a file.
    """
    kind = fiddle.kind_of(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if isinstance(value, fdl.Buildable):
        return refer(value)
    if kind in (list, tuple, dict):
        return encode_items(value, lambda item: encode(item, refer))
    if isinstance(value, enum.Enum) and value.name in type(value).__members__:
        return {"enum": [name_of(type(value)), value.name]}
    if kind is float:
        return {"float": repr(value)}
    if isinstance(value, str):
        return value
    if isinstance(value, pathlib.PurePath):
        return {"path": str(value)}
    if kind.__module__ == "torch" and kind.__name__ in ("dtype", "device"):
        return {kind.__name__: str(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        return {"object": [name_of(kind), {key: encode(field) for key, field in fields.items()}]}
    if callable(value):
        return {"name": name_of(value)}
    raise ConfigError(
        f"{value!r:.60} of type {kind.__name__} cannot be saved in a config: make it a "
        "fdl.Config of its constructor, or use plain values."
    )


def encode_items(value: Any, item: Callable[[Any], Any]) -> Any:
    """Return a list, tuple or dict as JSON, given the JSON of each item.

    Raises:
      ConfigError: a key has no form in a file.
    """
    kind = fiddle.kind_of(value)
    if kind is list:
        return [item(element) for element in value]
    if kind is tuple:
        return {"tuple": [item(element) for element in value]}
    if all(type(key) is str for key in value):
        return {"dict": {key: item(element) for key, element in value.items()}}
    return {"items": [[encode(key), item(element)] for key, element in value.items()]}


def encode_default(value: Any) -> Any:
    """Return a default as JSON; of one that has no form in a file, only its type."""
    try:
        return encode(value)
    except ConfigError:
        return {"default": type(value).__name__}


def decode(value: Any, find: Find, refer: Refer = _NO_REFERENCES) -> Any:
    """Return the value that `encode` wrote.

    Args:
      value: its JSON.
      find: returns the class or function of a name.
      refer: returns the node that `{word: path}` stands for, by the word; such references may
        stand in lists, tuples and dicts, and nowhere else.

    Raises:
      ConfigError: the JSON is not one of a value.
    """
    if isinstance(value, list):
        return [decode(item, find, refer) for item in value]
    if not isinstance(value, dict):
        return value
    match [*value.items()]:
        case [(word, str(path))] if word in refer:
            return refer[word](path)
        case [("tuple", list(items))]:
            return tuple([decode(item, find, refer) for item in items])
        case [("dict", dict(items))]:
            return {key: decode(item, find, refer) for key, item in items.items()}
        case [("items", list(pairs))]:
            return {decode(key, find): decode(item, find, refer) for key, item in pairs}
        case [("float", "inf" | "-inf" | "nan" as text)]:
            return float(text)
        case [("path", str(text))]:
            return pathlib.Path(text)
        case [("name", str(name))]:
            return find(name)
        case [("object", [str(name), dict(fields)])]:
            loaded = find(name)
            if not (inspect.isclass(loaded) and dataclasses.is_dataclass(loaded)):
                raise ConfigError(f"{name!r:.80} is not a dataclass; only those may be made.")
            return loaded(**{key: decode(item, find) for key, item in fields.items()})
        case [("enum", [str(name), str(member)])]:
            loaded = find(name)
            if not (inspect.isclass(loaded) and issubclass(loaded, enum.Enum)):
                raise ConfigError(f"{name!r:.80} is not an enum.")
            return loaded[member]
        case [("dtype" | "device" as kind, str(text))]:
            return _torch_value(kind, text)
    raise ConfigError(f"{value!r:.80} is not a known kind of value.")


def _torch_value(kind: str, text: str) -> Any:
    import torch  # only a file that names a dtype or device needs it

    value, name = None, text.removeprefix("torch.")
    with contextlib.suppress(RuntimeError):  # of a device that there is not
        # getattr would import any module of this name.
        value = vars(torch).get(name) if kind == "dtype" else torch.device(text)
    if not isinstance(value, getattr(torch, kind)):
        raise ConfigError(f"{text!r:.80} is not a {kind} of torch.")
    return value


def value_key(value: Any) -> str:
    """Return a text that is the same for values with the same form in a file.

    1, 1.0 and True differ; what has no form in a file is equal to itself alone.
    """
    try:
        return to_json(encode(value))
    except ConfigError:
        return f"object {id(value)}"


def is_same(left: Any, right: Any) -> bool:
    """Return whether two values are one node, or equal plain values: 1 is not 1.0, nor 0.0 -0.0."""
    if left is right:
        return True
    if fiddle.kind_of(left) is not fiddle.kind_of(right):
        return False
    if type(left) in LEAVES:
        return repr(left) == repr(right)
    has_parts = is_node(left) and (parts(left) or parts(right))
    return not has_parts and value_key(left) == value_key(right)
