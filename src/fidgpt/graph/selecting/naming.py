"""Which functions and classes of a graph a name means: `RMSNorm`, or `lab.parts.RMSNorm`."""

import sys
from collections.abc import Iterable
from typing import Any

from fidgpt.graph.errors import ConfigError, suggest


def meant(functions: Iterable[Any], name: str, *, sign: str = ":") -> list[Any]:
    """Those of some functions that have a name, and the classes that inherit from one that has it.

    A dotted name is that of a module, or the end of one, before the function's own: of the module
    where it is written, or of one that exports it. In a selector, a sign stands before it.

    Raises:
      ConfigError: it is the name of several classes of which none inherits from the other.
    """
    found = [(function, named) for function in functions if (named := _named(function, name))]
    paths = {path_of(one): one for _, named in found for one in named}
    first = [path for path, one in paths.items() if not _inherits(one, paths.values())]
    if len(first) > 1:
        written = " or ".join(f"{sign}{path}" for path in first)
        raise ConfigError(f"{name} is the name of {' and of '.join(first)}: write {written}.")
    return [function for function, _ in found]


def is_named(functions: Iterable[Any], name: str) -> bool:
    """Whether there is any such function or class."""
    return any(_named(function, name) for function in functions)


def path_of(function: Any) -> str:
    """The name of a function or class with the module in which it is written."""
    name = getattr(function, "__qualname__", repr(function))
    return f"{getattr(function, '__module__', '')}.{name}"


def nobody_carries(tag: Any, carried: Iterable[Any], *, where: str) -> str:
    """That no parameter carries a tag, and which ones they carry."""
    known = {one.__name__: one for one in carried}
    begin = f"no parameter of {where} carries the tag"
    if tag.__name__ not in known:
        nearest = suggest(tag.__name__, known)
        return f"{begin} {tag.__name__}, so nothing would change. {nearest}"
    other = path_of(known[tag.__name__])
    return (
        f"{begin} {path_of(tag)}, so nothing would change. Another one has that name, {other}: "
        f"say tag:{other}=..., or give a parameter your tag first."
    )


def _named(function: Any, name: str) -> list[Any]:
    """The function, or those of a class and of what it inherits from, that have a name."""
    bare = name.rpartition(".")[2]
    own = function.__mro__ if isinstance(function, type) else (function,)
    named = [one for one in own if getattr(one, "__name__", "") == bare]
    return named if bare == name else [one for one in named if _is_at(one, name)]


def _is_at(one: Any, dotted: str) -> bool:
    if f".{path_of(one)}".endswith(f".{dotted}"):
        return True
    place, _, bare = dotted.rpartition(".")
    package = path_of(one).partition(".")[0]
    return any(
        getattr(module, bare, None) is one
        for path, module in list(sys.modules.items())
        if path.partition(".")[0] == package and f".{path}".endswith(f".{place}")
    )


def _inherits(one: Any, others: Iterable[Any]) -> bool:
    return isinstance(one, type) and any(
        isinstance(other, type) and other is not one and issubclass(one, other) for other in others
    )
