"""The annotations of callables of every kind, each resolved as far as it can be."""

import functools
import inspect
import types
import typing
from typing import Any


def hints_of(function: Any) -> dict[str, Any]:
    """The annotations of a callable's parameters, and under "return" what a call returns.

    A class returns itself. An annotation that cannot be resolved is left out.
    """
    try:
        return _cached_hints(function)
    except TypeError:  # an instance that can be called but not hashed
        return _hints(function)


def members_of(hint: Any) -> tuple[Any, ...]:
    """The members of a Union or Optional; a hint of one member otherwise.

    Names for other hints (`NewType`, `Annotated`, `type X = ...`) are followed to what they name.
    """
    if type(hint) is type:  # most are
        return (hint,)
    while True:
        if isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        elif type(hint).__name__ == "TypeAliasType":  # Python 3.12
            hint = hint.__value__
        else:
            break
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(member for one in typing.get_args(hint) for member in members_of(one))
    return (hint,)


def is_unknown(hint: Any) -> bool:
    """Whether a hint says nothing that a value could be compared with."""
    is_named_only = isinstance(hint, typing.TypeVar | typing.ParamSpec | typing.ForwardRef | str)
    return hint is Any or hint is inspect.Parameter.empty or hint is typing.Self or is_named_only


def is_dtype(hint: Any) -> bool:
    """Whether a hint is torch's type of number formats, found out without importing torch."""
    return _is_of_torch(hint, "dtype")


def is_device(hint: Any) -> bool:
    """Whether a hint is torch's type of devices, found out in the same way."""
    return _is_of_torch(hint, "device")


def _is_of_torch(hint: Any, name: str) -> bool:
    return (getattr(hint, "__module__", None), getattr(hint, "__name__", None)) == ("torch", name)


def _hints(function: Any) -> dict[str, Any]:
    if isinstance(function, functools.partial):
        return hints_of(function.func)
    function = typing.get_origin(function) or function  # Box for Box[int]
    target = function
    if inspect.isclass(function):
        own_init = function.__init__ is not object.__init__
        target = function.__init__ if own_init else function.__new__
    elif not inspect.isroutine(function):
        target = type(function).__call__
    hints = _resolved(target)
    if inspect.isclass(function):
        hints["return"] = function if type(function).__call__ is type.__call__ else Any
    elif hints.get("return") is typing.Self:
        hints["return"] = getattr(function, "__self__", Any)
    return hints


_cached_hints = functools.lru_cache(maxsize=4096)(_hints)


def _resolved(target: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(target)
    except Exception:  # a third party's annotation may name what is not imported
        return _resolved_one_by_one(target)


def _resolved_one_by_one(target: Any) -> dict[str, Any]:
    """Those that can be resolved, when not all can."""
    names = getattr(inspect.unwrap(target), "__globals__", {})
    hints: dict[str, Any] = {}
    try:
        annotations = target.__annotations__
    except Exception:  # since Python 3.14 it may fail as a whole
        return {}
    for name, annotation in annotations.items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(alone, globalns=names)
        except Exception:  # as above
            continue
    return hints
