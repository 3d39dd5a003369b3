"""Which components may be set where a type is expected."""

import collections.abc
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph import fiddle, hints

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY


def fitting(hint: Any, components: Mapping[str, Any]) -> list[str]:
    """Return the names of the components that may be set where a type is expected.

    Stricter than `hints.fits`, which gives the benefit of the doubt: a Protocol's methods
    must have parameters of the same names.
    """
    members = [member for member in hints.members_of(hint) if not hints.is_unknown(member)]
    return [
        name
        for name, made in components.items()
        if builds(made) and any(_fits(made, member) for member in members)
    ]


def _fits(made: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is collections.abc.Callable:
        if _is_called_as(made, hint):
            return True
        asked, hint = typing.get_args(hint) or (None, Any)
        try:
            if isinstance(asked, list) and asked:  # without any, a partial holds all it needs
                inspect.signature(made).bind(*asked)
        except TypeError:
            return False
    returned = hints.hints_of(made).get("return")
    returned, hint = (getattr(side, "array_type", side) for side in (returned, hint))
    if hints.is_unknown(hint) or hint in (bool, str, None, type(None)):
        return False
    if not hints.is_protocol(hint):
        return inspect.isclass(returned) and inspect.isclass(hint) and issubclass(returned, hint)
    if inspect.isclass(returned) and hints.role_of(returned) == hint.__name__:
        return True
    methods, taken = hints.methods_of(hint), hints.hints_of(made)
    if inspect.isclass(returned):
        if any(taken.get(name) is hint for name in _required(made)):
            return False  # it holds one, as a block does an attention
        own = {name: hints.own_method(returned, name) for name in methods}
        is_alike = all(_has_names_of(own[name], asked) for name, asked in methods.items())
        if is_alike and hints.fits(fdl.Config(returned), hint):
            return True
    is_given = methods.keys() == {"__call__"} and {*_required(made)} <= {
        *_required(methods["__call__"])
    }
    return is_given and hints.fits(fdl.Partial(made), hint)


def _has_names_of(own: Any, asked: Any) -> bool:
    names = _required(asked)[1:]
    return inspect.isfunction(own) and _required(own)[1:][: len(names)] == names


def _is_called_as(made: Any, hint: Any) -> bool:
    """Whether a function, or instances of a class, are called as a Callable of known types is.

    What else may be named is for a config to set.
    """
    asked, result = typing.get_args(hint) or (None, Any)
    call = made if inspect.isroutine(made) else vars(made).get("__call__")
    if not isinstance(asked, list) or not asked or hints.is_unknown(result) or call is None:
        return False
    names = list(inspect.signature(call).parameters)[call is not made :]
    own, parameters = hints.hints_of(call), inspect.signature(call).parameters
    result = type(None) if result is None else result
    unnamed = [name for name in names[len(asked) :] if parameters[name].kind is _POSITIONAL]
    if len(names) < len(asked) or unnamed or own.get("return", Any) != result:
        return False
    pairs = zip(names, asked, strict=False)
    return all(_takes(parameters[name], own.get(name, Any), asked) for name, asked in pairs)


def _takes(parameter: inspect.Parameter, own: Any, asked: Any) -> bool:
    """Whether a parameter takes what another annotation asks: a Tensor takes a Parameter."""
    own, asked = (getattr(side, "array_type", side) for side in (own, asked))
    is_narrower = inspect.isclass(own) and inspect.isclass(asked) and issubclass(asked, own)
    is_named = parameter.kind in (parameter.KEYWORD_ONLY, *fiddle.VARIADIC)
    return not is_named and (own == asked or is_narrower)


def _required(function: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters, without the keywords that have defaults."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY or p.default is p.empty]


def builds(made: Any) -> bool:
    """Whether a graph could hold a call, or the function itself."""
    if inspect.isclass(made):
        return not (inspect.isabstract(made) or issubclass(made, dict))
    return not hints.is_unknown(hints.hints_of(made).get("return", Any))
