"""Values and callables as JSON, and back."""

import dataclasses
import enum
import functools
import importlib
import inspect
import math
import operator
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError, suggest
from fidgpt.graph.walk import title
from fidgpt.late import exports


def renamed(owner: Any) -> Mapping[str, str]:
    """The names that a constructor or package has given up, each with its successor of today."""
    known = _declared(owner, "RENAMED")
    return {name: _last(known, name) for name in known}


def removed(owner: Any) -> Mapping[str, Any]:
    """The parameters that a constructor has given up, each with the value that stands for good."""
    return _declared(owner, "REMOVED")


class Migration:
    """An entry of an old file, as a constructor of today takes it.

    Attributes:
      changes: what it took, for a person to read.
    """

    def __init__(self, function: Any, names: set[str] | None, *, path: str) -> None:
        """Prepares the reading of one part.

        Args:
          function: what the part calls.
          names: its parameters; None where it takes any.
          path: the part's path.
        """
        self.changes: list[str] = []
        self._renamed = {} if names is None else renamed(function)
        self._removed = {} if names is None else removed(function)
        self._names = names
        self._path = path

    def section(self, written: Mapping[str, Any], *, is_value: bool = False) -> Mapping[str, Any]:
        """The arguments of a section of the file by their names of today.

        Raises:
          ConfigError: a parameter is gone, and had another value than the one that stands now.
        """
        if self._names is None or not (self._renamed or self._removed):
            return written
        found: dict[str, Any] = {}
        for name, value in written.items():
            if name in self._names:
                found[name] = value
            elif name in self._renamed:
                if self._renamed[name] in written:
                    both = f"{self._renamed[name]} and {name}"
                    raise ConfigError(f"it has both {both}, the old name: delete one.")
                found[self._renamed[name]] = value
                self._note(f"{name} is called {self._renamed[name]} now")
            elif name in self._removed:
                self._drop(name, value, is_value)
            else:
                found[name] = value
        return found

    def _drop(self, name: str, value: Any, is_value: bool) -> None:
        stands = self._removed[name]
        if is_value and (type(value) is not type(stands) or value != stands):
            raise ConfigError(
                f"{name} was {value!r:.60}, and is gone: what is built now is as with "
                f"{stands!r:.60}."
            )
        self._note(f"{name} is gone, and was {stands!r:.60}, as is built now")

    def _note(self, what: str) -> None:
        text = f"{self._path or 'the root'}: {what}"
        if text not in self.changes:
            self.changes.append(text)


def _last(known: Mapping[str, str], name: str) -> str:
    """What a name has become, by however many renamings."""
    met = {name}
    while known[name] in known and known[name] not in met:
        name = known[name]
        met.add(name)
    return known[name]


def _declared(owner: Any, name: str) -> Mapping[str, Any]:
    try:
        found = getattr(owner, name, None)
    except Exception:  # whatever a third party's object does when it is asked
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        return {}
    return found


# A file is data. It may name what fidgpt exports for use in configs, and torch's own modules and
# optimizers; a name outside is refused before anything is imported.
ROOMS = ("configs", "data", "fiddlers", "model", "optim", "parallel", "tags", "train")
# Of other rooms these alone: what a graph itself brings along, and what reads a model's weights.
SINGLE = ("graph:formula", "interop:load_hf")
TORCH_MODULES = ("torch.nn", "torch.optim", "torch.optim.lr_scheduler")


def name_of(thing: Any) -> str:
    """The name `module:qualname` under which a file can ask for a class or function.

    What a room of fidgpt exports is named by the room: where in it the thing is written may change,
    without effect on files and fingerprints.

    Raises:
      ConfigError: it has no such name, because it was defined inside a function, in a notebook or
        a script, or is no class or function at all.
    """
    module = getattr(thing, "__module__", None)
    qualname = getattr(thing, "__qualname__", None)
    if not module or not qualname or "<" in qualname or module == "__main__":
        raise ConfigError(
            f"{qualname or repr(thing):.80} cannot be saved by name: define it at the top of a "
            "module that can be imported."
        )
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if found is not thing and found != thing:  # a method of an instance, or what is wrapped
        raise ConfigError(
            f"{qualname} cannot be saved by name: {module}.{qualname} is something else."
        )
    return f"{home_of(thing)}:{qualname}"


def home_of(thing: Any) -> str:
    """The room of fidgpt that exports a class or function, or else the module that has it."""
    module, qualname = thing.__module__ or "builtins", thing.__qualname__
    room = ".".join(module.split(".")[:2])
    top, _, name = room.partition(".")
    if top == "fidgpt" and (name in ROOMS or f"{name}:{qualname}" in SINGLE):
        holder = sys.modules[room]
        if exports(holder).get(qualname) is thing:
            return room
    return module


def find_name(name: str, *, allowed: tuple[str, ...] = ()) -> Any:
    """The class or function of a name, if a file may ask for it.

    Args:
      name: `module:qualname`.
      allowed: packages of the user's own from which anything may be named.

    Raises:
      ConfigError: the name is not allowed, or there is nothing of that name.
    """
    module, _, qualname = name.partition(":")
    top, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    if _is_within(module, allowed):
        return _imported(name, module, qualname, allowed)
    if top == "fidgpt" and (room in ROOMS or f"{room}:{qualname}" in SINGLE):
        return _exported(name, room, qualname)
    if _is_within(module, TORCH_MODULES):
        return _class_of_torch(name, module, qualname)
    is_known = top in (*sys.stdlib_module_names, "fidgpt", "torch")
    is_own = top.isidentifier() and len(top) < 40 and not is_known
    how = f" allow: --allow={top}" if is_own else " --allow"
    raise ConfigError(
        f"{name!r:.80} is refused: a config file may name what fidgpt exports, modules of "
        f"torch.nn, optimizers of torch.optim, and packages that you{how}."
    )


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _exported(name: str, room: str, qualname: str) -> Any:
    """What a room of fidgpt lists, in whichever of its files it is written today."""
    holder = importlib.import_module(f"fidgpt.{room}")
    exported = exports(holder)
    if room == "tags":
        exported = {key: value for key, value in vars(holder).items() if is_tag(value)}
    qualname = renamed(holder).get(qualname, qualname)
    if qualname not in exported:
        raise ConfigError(
            f"{name!r:.80} is refused: fidgpt.{room} does not export it. "
            f"{suggest(qualname, exported)}"
        )
    return exported[qualname]


def _class_of_torch(name: str, module: str, qualname: str) -> Any:
    """One of torch's own modules, optimizers and schedules, never what their files import."""
    found = None
    for package in TORCH_MODULES:
        found = found or vars(importlib.import_module(package)).get(qualname)
    if not inspect.isclass(found) or found.__module__ != module:
        raise ConfigError(
            f"{name!r:.80} is refused: torch has no module or optimizer of that name."
        )
    return found


def _imported(name: str, module: str, qualname: str, allowed: tuple[str, ...]) -> Any:
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # whatever the user's own package does when it is imported
        raise ConfigError(f"{module} cannot be imported for {name!r}: {error}") from error
    qualname = renamed(found).get(qualname, qualname)
    for part in qualname.split("."):
        known = [one for one in getattr(found, "__dict__", ()) if one[:1] != "_"]
        found = getattr(found, part, None)
        if found is None or isinstance(found, types.ModuleType):
            raise ConfigError(f"there is no {name!r:.80}. {suggest(qualname, known)}")
    made = found
    while isinstance(made, functools.partial):
        made = made.func
    origin = getattr(made, "__module__", None) or "a place that it does not name"
    if not _is_within(origin, allowed):
        raise ConfigError(
            f"{name!r:.80} is refused: it comes from {origin:.80}, a package to be allowed itself."
        )
    return found


def is_tag(value: Any) -> bool:
    """Whether a value is a quantity's tag."""
    return isinstance(value, type) and issubclass(value, fdl.Tag) and value is not fdl.Tag


def find_tag(name: str, find: Callable[[str], Any]) -> Any:
    """The tag of a name.

    Raises:
      ConfigError: what `find` gives for the name is none.
    """
    tag = find(name)
    if not is_tag(tag):
        raise ConfigError(f"{name!r:.80} is no tag.")
    return tag


_NOTHING: Mapping[str, Callable[[str], Any]] = {}


def encode(value: Any, paths: Mapping[int, str]) -> Any:
    """A value as JSON; a part as the path that `paths` has for its identity.

    What JSON cannot express becomes an object with one key, which names its kind.

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
            raise ConfigError(f"it has {key!r:.60} twice in one place: remove one of them.")
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
