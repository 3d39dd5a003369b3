"""Dotted names such as `torch.nn.Linear`: what they name, if a config file may ask for it."""

import importlib
import importlib.util
import inspect
from typing import Any

from fidgpt.graph import ConfigError, suggest
from fidgpt.graph.storage.names import ROOMS, SINGLE, TORCH_MODULES, find_name, is_tag, name_of


def refusal(name: str, allowed: tuple[str, ...]) -> str | None:
    """Why a file may not ask for a name, known without importing anything; None where it may."""
    module = name.partition(":")[0]
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts) or (len(parts) < 2 and ":" not in name):
        return f"{name!r:.80} is no dotted name, such as torch.nn.Linear."
    is_own = parts[0] == "fidgpt" and parts[1] in ROOMS if len(parts) > 1 else False
    is_own = is_own or _dotted(name) in [_dotted(f"fidgpt.{one}") for one in SINGLE]
    if is_own or _package(module, (*TORCH_MODULES, *allowed)):
        return None
    return (
        f"{name!r:.80} is refused: a config file may name what fidgpt exports, modules of "
        "torch.nn, optimizers of torch.optim, and packages that you --allow."
    )


def find_target(name: str, *, allowed: tuple[str, ...] = ()) -> Any:
    """The class or function of a dotted name; `module:qualname` says where the module ends.

    Raises:
      ConfigError: the name is not allowed, or there is nothing of that name.
    """
    if message := refusal(name, allowed):
        raise ConfigError(message)
    if ":" not in name:
        name = _with_colon(name, allowed)
    return find_name(name, allowed=allowed)


def find_constructor(name: str, *, allowed: tuple[str, ...] = ()) -> Any:
    """As `find_target`, of what a part can call.

    Raises:
      ConfigError: as `find_target` does, or nothing can be called under the name.
    """
    found = find_target(name, allowed=allowed)
    if not callable(found) or is_tag(found):
        raise ConfigError(f"{name!r:.80} is no constructor.")
    return found


def dotted_name(thing: Any) -> str:
    """The shortest dotted name by which a file may ask for a class or function.

    Raises:
      ConfigError: it has no name, because it was defined inside a function or in a notebook.
    """
    name = name_of(thing)
    module, _, qualname = name.partition(":")
    if _package(module, ("torch",)):
        for package in TORCH_MODULES:
            if getattr(importlib.import_module(package), qualname, None) is thing:
                return f"{package}.{qualname}"
    return _dotted(name)


def _dotted(name: str) -> str:
    return name.replace(":", ".")


def _package(module: str, packages: tuple[str, ...]) -> str | None:
    """The first of some packages that a module belongs to."""
    inside = (one for one in packages if module == one or module.startswith(f"{one}."))
    return next(inside, None)


def _with_colon(name: str, allowed: tuple[str, ...]) -> str:
    """A dotted name with a colon where the module ends and what is in it begins."""
    if package := _package(name, allowed):
        return _split_by_files(name, package)
    module, _, qualname = name.rpartition(".")
    if name.startswith("torch."):
        return _where_torch_defines(module, qualname) or f"{module}:{qualname}"
    return f"{module}:{qualname}"


def _split_by_files(name: str, package: str) -> str:
    """Follows a name as far as there are modules; to look inside a package, Python imports it."""
    module = package
    rest = name.removeprefix(package).strip(".").split(".")
    while len(rest) > 1:
        try:
            found = importlib.util.find_spec(f"{module}.{rest[0]}")
        except ModuleNotFoundError:
            found = None
        except Exception as error:  # whatever the user's own package does when it is imported
            raise ConfigError(f"{module} cannot be imported for {name!r:.80}: {error}") from error
        if found is None:
            break
        module = f"{module}.{rest.pop(0)}"
    return f"{module}:{'.'.join(rest)}"


def _where_torch_defines(module: str, qualname: str) -> str | None:
    """`torch.nn:Linear` -> `torch.nn.modules.linear:Linear`, where the class is written."""
    if module not in TORCH_MODULES:
        return None
    known = vars(importlib.import_module(module))
    found = known.get(qualname)
    if not inspect.isclass(found):
        classes = [name for name, value in known.items() if inspect.isclass(value)]
        raise ConfigError(f"{module} has no class {qualname!r:.40}. {suggest(qualname, classes)}")
    return f"{found.__module__}:{found.__qualname__}"
