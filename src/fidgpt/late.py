"""Exports of packages, some of which are loaded on first use (PEP 562)."""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

_SETTINGS = {"RENAMED", "REMOVED"}  # see graph/codec.py


def lazy_exports(
    package: str, modules: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a package.

    Define them under `if not TYPE_CHECKING`, beside imports of the same names: to type
    checkers they would define every name.

    Args:
      package: its `__name__`.
      modules: exported names, by the module of the package that defines them.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, listed, [*homes]


def exports(module: ModuleType) -> dict[str, Any]:
    """Return what a module exports: `__all__`, or else its public names other than modules."""
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name not in _SETTINGS
    }
