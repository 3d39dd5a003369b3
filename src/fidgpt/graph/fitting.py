"""Which components may be set where a type is expected."""

import collections.abc
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph import hints


def fitting(hint: Any, components: Mapping[str, Any]) -> list[str]:
    """Return the names of the components that may be set where a type is expected.

    Stricter than `hints.fits`, which gives the benefit of the doubt: a Protocol's methods
    must have parameters of the same names.
    """
    members = [one for one in hints.members_of(hint) if not hints.is_unknown(one)]
    return [
        name
        for name, made in components.items()
        if builds(made) and any(_fits(made, one) for one in members)
    ]


def _fits(made: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is collections.abc.Callable:
        asked, hint = typing.get_args(hint) or (None, Any)
        try:
            if isinstance(asked, list) and asked:  # without any, a partial holds all it needs
                inspect.signature(made).bind(*asked)
        except TypeError:
            return False
    returned = hints.hints_of(made).get("return", Any)
    returned, hint = (getattr(side, "array_type", side) for side in (returned, hint))
    if hints.is_unknown(hint) or hint in (bool, str, type(None)):
        return False
    if hints.is_protocol(hint):
        methods = {name: _required(one)[1:] for name, one in hints.methods_of(hint).items()}
        if inspect.isfunction(made) and methods == {"__call__": _required(made)}:
            return True
        names = methods if inspect.isclass(returned) else ()
        own = {name: hints.own_method(returned, name) for name in names}
        has_methods = own.keys() == methods.keys() and all(map(inspect.isfunction, own.values()))
        is_alike = has_methods and methods == {n: _required(one)[1:] for n, one in own.items()}
        return is_alike and hints.fits(fdl.Config(returned), hint)
    if hints.is_protocol(returned) or typing.get_origin(hint):  # a list of components is not one
        return False
    if inspect.isclass(returned) and inspect.isclass(hint) and not typing.is_typeddict(hint):
        return issubclass(returned, hint)
    return returned is hint if typing.is_typeddict(hint) else hints.fits(fdl.Config(made), hint)


def _required(function: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters, without the keywords that have defaults."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY or p.default is p.empty]


def builds(made: Any) -> bool:
    """Whether a call makes something that a graph could hold."""
    if inspect.isclass(made):
        return not (inspect.isabstract(made) or issubclass(made, dict))
    returned = hints.hints_of(made).get("return", Any)
    return not hints.is_unknown(returned) and returned not in (None, type(None))
