"""What can be named on a command line: configs, fiddlers and components."""

import collections
import enum
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import fiddle as fdl

from fidgpt.compose.projects import find_dotted, installed_projects, module_in, offered
from fidgpt.graph import ConfigError, read_value, suggest
from fidgpt.graph.errors import at
from fidgpt.graph.expressions import Call
from fidgpt.graph.fiddle import VARIADIC
from fidgpt.graph.hints import hints_of, is_protocol
from fidgpt.graph.storage.codec import TORCH_MODULES, find_name, is_tag
from fidgpt.late import exports


@functools.cache
def user_errors() -> tuple[type[Exception], ...]:
    """Return the errors whose message alone is shown; imports the library that raises them."""
    from fidgpt.data import DataError
    from fidgpt.model import InitError, MachineError
    from fidgpt.parallel import ParallelError
    from fidgpt.train import CheckpointError, RunError

    return (
        ConfigError,
        DataError,
        CheckpointError,
        RunError,
        ParallelError,
        InitError,
        MachineError,
    )


def call_with(function: Callable[..., Any], call: Call, *given: Any) -> Any:
    """What `function` returns for what is `given` and the typed arguments that come after it.

    Raises:
      ConfigError: an argument is unknown, missing, one too many, or does not fit; or the function
        failed, which for a fiddler means that it does not suit the config.
    """
    values = _read_arguments(function, call, skip=len(given))
    parameters = inspect.signature(function).parameters.values()
    nameless = [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY][len(given) :]
    first = [values.pop(name) for name in nameless if name in values]
    return guarded(call.name, function, *given, *first, **values)


def needs_arguments(function: Callable[..., Any], *, given: int = 0) -> bool:
    """Whether a function cannot be called without arguments, past the first that it is `given`."""
    parameters = list(inspect.signature(function).parameters.values())[given:]
    return any(one.default is one.empty and one.kind not in VARIADIC for one in parameters)


def guarded(name: str, function: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    """What a function of somebody's own returns.

    Raises:
      ConfigError: it failed, which for a fiddler means that it does not suit the config.
    """
    try:
        return function(*given, **named)
    except (Exception, SystemExit) as error:  # whatever goes wrong in code of somebody's own
        if isinstance(error, user_errors()):
            raise
        lines = str(error).splitlines() or [""]
        raise ConfigError(
            f"{name} failed, so it may not suit this config.\n"
            f"  {type(error).__name__}: {lines[0]:.200}\n"
            "  --debug shows where."
        ) from error


def _read_arguments(function: Callable[..., Any], call: Call, *, skip: int) -> dict[str, Any]:
    """The values of a function's parameters past the first `skip`, by name; defaults left out."""
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    names = [parameter.name for parameter in parameters if parameter.kind not in VARIADIC]
    if len(call.positional) > len(names):
        raise ConfigError(
            f"{call.name} takes {_count(names)}, and is given {len(call.positional)}."
        )
    texts = dict(zip(names, call.positional, strict=False))
    for name, text in call.named.items():
        if name not in names:
            raise ConfigError(f"{call.name} has no argument {name!r}. {suggest(name, names)}")
        if name in texts:
            raise ConfigError(f"{call.name} is given {name} twice.")
        texts[name] = text
    for parameter in parameters:
        required = parameter.name in names and parameter.default is inspect.Parameter.empty
        if required and parameter.name not in texts:
            raise ConfigError(
                f"{call.name} needs {parameter.name}: {call.name}({parameter.name}=...)."
            )
    return {name: _read(function, name, text) for name, text in texts.items()}


def _read(function: Callable[..., Any], name: str, text: str) -> Any:
    with at(name):
        return read_value(text, hints_of(function).get(name, Any))


def _count(names: list[str]) -> str:
    if not names:
        return "no arguments"
    return f"{len(names)} {'argument' if len(names) == 1 else 'arguments'} ({', '.join(names)})"


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
        exported = {room: _constructors(exports(module)) for room, module in own.items()}
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


@dataclass(frozen=True)
class Catalogue:
    """Names and what they stand for; beside them only dotted names of importable modules.

    Attributes:
      configs: functions that return a graph.
      fiddlers: functions that change one.
      tags: quantities.
      parts: constructors, and functions that parts take.
      packages: packages whose callables a file may name.
    """

    configs: Mapping[str, Callable[..., fdl.Config]]
    fiddlers: Mapping[str, Callable[..., None]]
    tags: Mapping[str, type[fdl.Tag]]
    parts: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    packages: tuple[str, ...] = ()

    def find(self, kind: str, name: str) -> Any:
        """What a name stands for, as a `config`, `fiddler` or `tag`.

        Raises:
          ConfigError: there is nothing of that name and kind; the nearest names are suggested.
        """
        known = self._lists[kind]
        if name in known:
            return known[name]
        if "." in name:
            return find_dotted(name, kind)
        other = self.kind_of(name)
        remedy = f"There is {other}:{name}." if other else suggest(name, known)
        raise ConfigError(f"there is no {kind} {name!r}. {remedy}")

    def kind_of(self, name: str) -> str | None:
        """The kind under which a name is listed; None where it is not."""
        return next((kind for kind, known in self._lists.items() if name in known), None)

    @property
    def _lists(self) -> dict[str, Mapping[str, Any]]:
        return {"config": self.configs, "fiddler": self.fiddlers, "tag": self.tags}


def own_catalogue(allowed: tuple[str, ...] = ()) -> Catalogue:
    """The catalogue of fidgpt's own configs, fiddlers, tags and parts, and of installed projects.

    Args:
      allowed: more packages whose callables a file may name.

    Raises:
      ConfigError: an installed project cannot be imported.
    """
    from fidgpt import configs, fiddlers, tags
    from fidgpt.interop.hugging_face import from_hf

    projects = installed_projects()
    return Catalogue(
        configs=_with_projects(
            _listed(configs) | {"from_hf": from_hf}, [project.configs for project in projects]
        ),
        fiddlers=_with_projects(_listed(fiddlers), [project.fiddlers for project in projects]),
        tags=_with_projects(_tags(tags), [project.tags for project in projects]),
        parts=KnownParts(tuple(project.package for project in projects), allowed),
        packages=(*(project.package for project in projects), *allowed),
    )


def _listed(module: Any) -> dict[str, Any]:
    return {name: getattr(module, name) for name in module.__all__}


def _tags(module: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if is_tag(value)}


def _with_projects(own: dict[str, Any], others: list[Mapping[str, Any]]) -> dict[str, Any]:
    """All names; of the projects' dotted ones, and bare ones that only one project has."""
    merged = dict(own)
    bare = [name.rpartition(".")[2] for names in others for name in names]
    for names in others:
        for name, value in names.items():
            merged[name] = value
            short = name.rpartition(".")[2]
            if short not in own and bare.count(short) == 1:
                merged[short] = value
    return merged
