"""A user's own project: modules found by dotted name, and packages that are installed for fidgpt.

A package declares itself in its `pyproject.toml`; its modules `configs`, `fiddlers`, `tags` and
`parts` are then known by name:

    [project.entry-points."fidgpt.project"]
    lab = "lab"
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from fidgpt.graph import ConfigError, suggest
from fidgpt.graph.storage.codec import is_tag

GROUP = "fidgpt.project"


@dataclass(frozen=True)
class Project:
    """An installed package of somebody's own, with what it offers by dotted name."""

    package: str
    configs: Mapping[str, Any] = field(default_factory=dict)
    fiddlers: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)


def installed_projects() -> list[Project]:
    """The packages that declare themselves in the entry point group `fidgpt.project`.

    Raises:
      ConfigError: one of them cannot be imported.
    """
    packages = sorted({point.value for point in entry_points(group=GROUP)})
    return [_project(package) for package in packages]


def find_dotted(name: str, kind: str) -> Any:
    """What a module offers under a dotted name, such as `lab.ablations.narrow`.

    A module offers what it lists in `__all__`, or else its own public definitions; never what it
    has imported. Python's own modules offer nothing.

    Args:
      name: the dotted name.
      kind: what is wanted: a `config`, `fiddler`, `tag` or `part`.

    Raises:
      ConfigError: there is no such module, or it offers no such thing.
    """
    module_name, _, last = name.rpartition(".")
    package = module_name.partition(".")[0]
    if package in sys.stdlib_module_names:
        raise ConfigError(
            f"there is no {kind} {name!r}: {package} is one of Python's own modules, which hold "
            "none. A module of yours needs a name of its own."
        )
    module = _imported(module_name, f"{kind} {name!r}")
    known = offered(module)
    if last not in known:
        raise ConfigError(f"{module_name} offers no {kind} {last!r}. {suggest(last, known)}")
    if not _is_kind(known[last], kind):
        raise ConfigError(f"{name} is no {kind}, but {type(known[last]).__name__}.")
    return known[last]


def offered(module: ModuleType) -> dict[str, Any]:
    """What a module lets others name: its `__all__`, or else its own public definitions."""
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "tag":
        return is_tag(value)
    if kind == "part":
        return callable(value) and not is_tag(value)
    return inspect.isfunction(value)


def _imported(name: str, wanted: str) -> ModuleType:
    if not all(piece.isidentifier() for piece in name.split(".")):
        raise ConfigError(f"there is no {wanted}: {name!r} is no name of a module.")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise ConfigError(
                f"there is no module {missing!r} for {wanted}: is its folder on PYTHONPATH?"
            ) from None
        raise ConfigError(f"{name} cannot be imported for {wanted}: {error}.") from error
    except (Exception, SystemExit) as error:  # whatever a user's module does when it is imported
        first = (str(error).splitlines() or [""])[0]
        told = f"{type(error).__name__}: {first:.200}"
        raise ConfigError(f"{name} cannot be imported for {wanted}: {told}") from error


def module_in(package: str, room: str) -> ModuleType | None:
    """A module of an installed project, such as its `configs`; None where it has none.

    Raises:
      ConfigError: it cannot be imported.
    """
    wanted, full = f"the installed project {package!r}", f"{package}.{room}"
    top = _imported(package, wanted)
    has_room = hasattr(top, "__path__") and importlib.util.find_spec(full) is not None
    return _imported(full, wanted) if has_room else None


def _project(package: str) -> Project:
    rooms = {}
    for room, kind in (("configs", "config"), ("fiddlers", "fiddler"), ("tags", "tag")):
        module = module_in(package, room)
        rooms[room] = {
            f"{package}.{room}.{name}": value
            for name, value in (offered(module) if module else {}).items()
            if _is_kind(value, kind)
        }
    return Project(package, **rooms)
