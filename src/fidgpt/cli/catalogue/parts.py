"""The constructors that a text may name: fidgpt's, torch's, and those of a user's own project."""

import collections
import enum
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from fidgpt.cli.catalogue.projects import find_dotted, module_in, offered
from fidgpt.graph import ConfigError
from fidgpt.graph.signatures.protocols import is_protocol
from fidgpt.graph.storage.names import TORCH_MODULES, find_name, is_tag

_WRITTEN_SHORT = {"nn": "torch.nn", "optim": "torch.optim"}
_LIMITED = ("fidgpt", "torch")  # of which not all is for configs
_INSTALLED = {"site-packages", "dist-packages"}
_ROOMS = ("model", "optim", "data", "train", "parallel")


class KnownParts(Mapping[str, Callable[..., Any]]):
    """Parts by name; what is written with dots is looked up when it is asked for.

    A bare name stands for what one room of fidgpt exports; where two rooms export it, it is
    written `optim.Constant`. Classes of torch.nn and torch.optim are known by their bare names,
    where nothing of fidgpt has them, and as `nn.LayerNorm`. Dotted names are theirs in full, and
    what modules of the user's own offer. What no file could name, such as `torch.load`, is no part.
    To ask for one that cannot be imported is a ConfigError, and so is one of a package that was
    installed and neither declares itself nor is allowed.

    Args:
      packages: installed projects; what they export, and what their modules `parts` offer, has
        bare names too.
      allowed: more packages whose callables a file may name.
    """

    def __init__(self, packages: tuple[str, ...] = (), allowed: tuple[str, ...] = ()) -> None:
        self._packages = packages
        self._allowed = (*packages, *allowed)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        room, _, last = name.rpartition(".")
        if name in self._listed:
            return self._listed[name]
        if last in self._rooms.get(room, {}):
            return self._rooms[room][last]
        searched = TORCH_MODULES if not room else (_WRITTEN_SHORT.get(room, room),)
        for module in searched:
            if module in TORCH_MODULES and (found := _class_of_torch(module, last)):
                return found
        if not room or room in self._rooms or room in TORCH_MODULES:
            raise KeyError(name)
        return self._dotted(name, room, last)

    def _dotted(self, name: str, module: str, last: str) -> Callable[..., Any]:
        top = module.partition(".")[0]
        if top in _LIMITED:
            try:
                return find_name(f"{module}:{last}")
            except ConfigError:
                raise KeyError(name) from None
        found = find_dotted(name, "part")
        if top not in self._allowed and _is_installed(top):
            raise ConfigError(
                f"{name} is no part: {top} is installed, and does not say that it has parts for "
                f"fidgpt. If it has, add --allow={top}."
            )
        return found

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and callable(self[name])
        except KeyError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    @cached_property
    def _rooms(self) -> dict[str, dict[str, Any]]:
        """What each room offers; imported when the first name is asked for, for it takes torch."""
        own = {room: importlib.import_module(f"fidgpt.{room}") for room in _ROOMS}
        exported = {room: _constructors(_exported(module)) for room, module in own.items()}
        return exported | {package: _parts_of(package) for package in self._packages}

    @cached_property
    def _listed(self) -> dict[str, Callable[..., Any]]:
        """All that is offered, with its room where two rooms have the name."""
        count = collections.Counter(name for offered in self._rooms.values() for name in offered)
        return {
            name if count[name] == 1 else f"{room}.{name}": value
            for room, offered in self._rooms.items()
            for name, value in offered.items()
        }


def _is_installed(package: str) -> bool:
    """Whether a package that was imported lies where package managers put what they install."""
    file = getattr(sys.modules[package], "__file__", None)
    return file is not None and not _INSTALLED.isdisjoint(Path(file).parts)


def _exported(module: Any) -> dict[str, Any]:
    return {name: getattr(module, name) for name in getattr(module, "__all__", ())}


def _constructors(named: Mapping[str, Any]) -> dict[str, Any]:
    """The classes and functions among named values, but for errors, protocols, enums and tags."""
    return {name: value for name, value in named.items() if _is_constructor(value)}


def _parts_of(package: str) -> dict[str, Any]:
    """What a project exports, and what its module `parts` offers."""
    module = module_in(package, "parts")
    found = offered(module) if module else {}
    return _constructors(_exported(importlib.import_module(package)) | found)


def _is_constructor(value: Any) -> bool:
    if not inspect.isclass(value):
        return inspect.isroutine(value)
    is_other = is_protocol(value) or is_tag(value) or issubclass(value, BaseException | enum.Enum)
    return not is_other


def _class_of_torch(module: str, name: str) -> Callable[..., Any] | None:
    """A class of torch, never what its files import; None where there is none of that name."""
    found = vars(importlib.import_module(module)).get(name)
    is_own = inspect.isclass(found) and found.__module__.startswith(TORCH_MODULES)
    return found if is_own else None
