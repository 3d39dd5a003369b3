"""Whether what a call that was not made yet will return is what an annotation asks."""

import collections.abc
import functools
import inspect
import typing
from typing import Any

import fiddle as fdl

from fidgpt.graph.signatures.annotations import hints_of, is_unknown, members_of
from fidgpt.graph.signatures.protocols import is_protocol, may_have, methods_of, own_method
from fidgpt.graph.structure.arguments import VARIADIC

TOWER = {float: (int,), complex: (int, float)}  # what is welcome where another number is asked


def part_fits(part: fdl.Buildable, hint: Any) -> bool:
    """Whether what a part will be once it is built may be passed where `hint` is asked."""
    try:
        return _cached_call_fits(type(part), fdl.get_callable(part), hint)
    except TypeError:  # what cannot be hashed
        return _call_fits(type(part), fdl.get_callable(part), hint)


def _call_fits(kind: type, function: Any, hint: Any) -> bool:
    built = hints_of(function).get("return", Any)
    if not issubclass(kind, fdl.Partial):
        return _may_be(built, hint, exactly=inspect.isclass(function))
    origin = _runtime_kind(typing.get_origin(hint) or hint)
    if origin is collections.abc.Callable:
        return may_return(function, hint)
    if not inspect.isclass(origin):
        return True
    if is_protocol(origin):
        return has_methods(functools.partial, origin)
    return issubclass(functools.partial, origin)


_cached_call_fits = functools.lru_cache(maxsize=4096)(_call_fits)


def may_return(function: Any, hint: Any) -> bool:
    """Whether a function or class, where it is one, may return what a Callable shall."""
    if not (inspect.isfunction(function) or inspect.isclass(function)):
        return True
    returns, built = typing.get_args(hint)[1:] or (Any,), hints_of(function).get("return", Any)
    return _may_be(built, returns[0], exactly=inspect.isclass(function))


def _may_be(built: Any, hint: Any, *, exactly: bool) -> bool:
    """Whether a call annotated to return `built` may return what `hint` asks.

    A class returns its own instances `exactly`; a function may return something narrower than its
    annotation, so that only what neither contains the other is known to be wrong.
    """
    pairs = [(one, asked) for one in members_of(built) for asked in members_of(hint)]
    return any(_one_may_be(one, asked, exactly) for one, asked in pairs)


def _one_may_be(built: Any, hint: Any, exactly: bool) -> bool:
    if is_unknown(built) or is_unknown(hint):
        return True
    have, want = (_runtime_kind(typing.get_origin(side) or side) for side in (built, hint))
    if not (inspect.isclass(have) and inspect.isclass(want)) or is_protocol(have):
        return True
    if is_protocol(want):
        return has_methods(have, want)
    if want is collections.abc.Callable and exactly and callable(called := _method(have)):
        return may_return(called, hint)
    if issubclass(have, (want, *TOWER.get(want, ()))):
        return True
    return not exactly and issubclass(want, have)


def _method(kind: type) -> Any:
    """What is run when an instance of a class is called, as far as it was written for that."""
    called = inspect.getattr_static(kind, "__call__", None)
    return called if inspect.isfunction(called) and "return" in hints_of(called) else None


def _runtime_kind(hint: Any) -> Any:
    """What is made where a hint is asked: a tensor of any shape, or a dict for a TypedDict."""
    return dict if typing.is_typeddict(hint) else getattr(hint, "array_type", hint)


def has_methods(kind: type, protocol: Any) -> bool:
    """Whether instances of a class have the methods of a Protocol, as far as anybody can know."""
    asked = methods_of(protocol)
    looked_up = getattr(kind, "__getattr__", None)
    is_anything = looked_up and not looked_up.__module__.startswith("torch.")  # only what is set
    if not is_anything and not all(may_have(kind, name) for name in asked):
        return False
    return all(can_be_called_as(own_method(kind, name), asked[name]) for name in asked)


def can_be_called_as(own: Any, asked: Any) -> bool:
    """Whether a method takes what the one of a Protocol does, and may return what that returns."""
    parameters = inspect.signature(asked).parameters.values()
    if not inspect.isfunction(own) or any(one.kind in VARIADIC for one in parameters):
        return True
    by_name = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    try:
        in_order = [None] * (len(parameters) - len(by_name))
        inspect.signature(own).bind(*in_order, **dict.fromkeys(by_name))
    except TypeError:
        return False
    built, wanted = (_returned(one) for one in (own, asked))
    # A method may return another of its own kind, so that to ask for its methods would never end.
    return any(map(is_protocol, members_of(wanted))) or _may_be(built, wanted, exactly=False)


def _returned(method: Any) -> Any:
    """What a method is annotated to return; of a decorated one, as a context manager, unknown."""
    return Any if hasattr(method, "__wrapped__") else hints_of(method).get("return", Any)
