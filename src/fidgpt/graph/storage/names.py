"""Names of callables in files: how one is written, and which ones a file may ask for."""

import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError, suggest
from fidgpt.graph.storage.migrations import renamed

# A file is data. It may name what fidgpt exports for use in configs, and torch's own modules and
# optimizers; a name outside is refused before anything is imported.
ROOMS = ("configs", "data", "fiddlers", "model", "optim", "parallel", "tags", "train")
# Of other rooms these alone: what a graph itself brings along, and what reads a model's weights.
SINGLE = ("graph:formula", "interop:load_hf")
TORCH_MODULES = ("torch.nn", "torch.optim", "torch.optim.lr_scheduler")


def name_of(thing: Any) -> str:
    """The name `module:qualname` under which a file can ask for a class or function.

    What a room of fidgpt exports is named by the room: where in it the thing is written may change,
    and neither files nor fingerprints hear of that.

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
        if qualname in getattr(holder, "__all__", ()) and getattr(holder, qualname) is thing:
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
    exported = getattr(holder, "__all__", ())
    if room == "tags":
        exported = [key for key, value in vars(holder).items() if is_tag(value)]
    qualname = renamed(holder).get(qualname, qualname)
    if qualname not in exported:
        raise ConfigError(
            f"{name!r:.80} is refused: fidgpt.{room} does not export it. "
            f"{suggest(qualname, exported)}"
        )
    return getattr(holder, qualname)


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
