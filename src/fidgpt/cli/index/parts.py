"""The parts that can be named, and which of them may stand where a type is asked."""

import collections.abc
import enum
import inspect
import typing
from collections.abc import Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph.signatures.annotations import hints_of, is_unknown, members_of
from fidgpt.graph.signatures.docs import doc_of
from fidgpt.graph.signatures.hints import fits, name_of
from fidgpt.graph.signatures.protocols import is_protocol, methods_of, own_method


def parts_on_offer(known: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the known parts that build something which a graph could hold."""
    return {name: made for name, made in known.items() if _builds(made)}


def part_entry(made: Any) -> dict[str, Any]:
    """What is known of a part: its module, its doc and its arguments."""
    docs, hints = doc_of(made), hints_of(made)
    module = ".".join(made.__module__.split(".")[:2])
    return {
        "module": module,
        "doc": docs.summary,
        "arguments": [
            {"name": name}
            | ({"type": name_of(hints[name])} if name in hints else {})
            | ({"default": f"{p.default!r:.60}"} if p.default is not p.empty else {})
            | ({"doc": docs.parameters[name]} if name in docs.parameters else {})
            for name, p in inspect.signature(made).parameters.items()
        ],
    }


def fitting(hint: Any, offered: dict[str, Any]) -> list[str]:
    """The names of the parts on offer that may stand where a hint is asked."""
    if all(is_unknown(member) for member in members_of(hint)):
        return []
    members = members_of(hint)
    return [name for name, made in offered.items() if any(_fits(made, one) for one in members)]


def _fits(made: Any, hint: Any) -> bool:
    """As `graph.signatures.hints.fits`, and stricter where that gives the benefit of the doubt.

    What is asked for by a Protocol must have its methods, and what is asked for as a function must
    take as many arguments.
    """
    if typing.get_origin(hint) is collections.abc.Callable:
        asked, returned = typing.get_args(hint)
        return _takes(made, asked) and _makes(made, returned)
    return _makes(made, hint)


def _makes(made: Any, hint: Any) -> bool:
    returned = hints_of(made).get("return", Any)
    returned, hint = (getattr(side, "array_type", side) for side in (returned, hint))
    if is_unknown(hint) or hint in (bool, str, type(None)):
        return False
    if is_protocol(hint):
        if inspect.isfunction(made) and _answers(made, hint):
            return True
        has_methods = inspect.isclass(returned) and _has_methods(returned, hint)
        return has_methods and fits(fdl.Config(returned), hint)
    if is_protocol(returned):
        return False
    if typing.get_origin(hint):  # a list of something: its elements are parts, it is none
        return False
    if typing.is_typeddict(hint):
        return returned is hint
    if inspect.isclass(returned) and inspect.isclass(hint):
        return issubclass(returned, hint)
    return fits(fdl.Config(made), hint)


def _takes(made: Any, asked: Any) -> bool:
    if not isinstance(asked, list) or not asked:  # a partial holds all that is needed
        return True
    try:
        inspect.signature(made).bind(*asked)
    except TypeError:
        return False
    return True


def _has_methods(made: type, protocol: Any) -> bool:
    """Whether a class has the methods of a Protocol, each with the same arguments."""
    return all(
        inspect.isfunction(own := own_method(made, name)) and _is_alike(own, method, first=1)
        for name, method in methods_of(protocol).items()
    )


def _answers(function: Any, protocol: Any) -> bool:
    """Whether a function itself is what a Protocol asks, which is no more than a call."""
    asked = methods_of(protocol)
    return [*asked] == ["__call__"] and _is_alike(function, asked["__call__"], first=0)


def _is_alike(own: Any, asked: Any, *, first: int) -> bool:
    """Whether one takes the arguments of the other, by position such as may be of one kind.

    The `first` argument of a method is `self`.
    """
    count, needed = _call_shape(own)
    if (count + 1 - first, needed) != _call_shape(asked):
        return False
    pairs = zip(_hints(own)[first:count], _hints(asked)[1:], strict=True)
    return all(
        any(map(is_unknown, (*members_of(one), *members_of(other))))
        or not {*map(_kind, members_of(one))}.isdisjoint(map(_kind, members_of(other)))
        for one, other in pairs
    )


def _hints(function: Any) -> list[Any]:
    """What a function asks of each argument by position."""
    hints = hints_of(function)
    names = list(inspect.signature(function).parameters)[: _call_shape(function)[0]]
    return [hints.get(name, Any) for name in names]


def _kind(hint: Any) -> Any:
    """What a hint asks, whatever the sizes of a tensor."""
    return getattr(hint, "dtypes", hint) if hasattr(hint, "array_type") else hint


def _call_shape(method: Any) -> tuple[int, set[str]]:
    """How many arguments a method takes by position, and which it needs by name."""
    parameters = inspect.signature(method).parameters.values()
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    needed = {
        one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty
    }
    return sum(one.kind not in by_name for one in parameters), needed


def _builds(made: Any) -> bool:
    """Whether calling it makes something that a graph could hold, by arguments that are known."""
    try:
        inspect.signature(made)
    except ValueError:  # such as a heir of dict
        return False
    if inspect.isclass(made):
        is_shape = is_protocol(made) or inspect.isabstract(made)
        return not is_shape and not issubclass(made, BaseException | enum.Enum)
    returned = hints_of(made).get("return", Any) if inspect.isfunction(made) else Any
    return not is_unknown(returned) and returned not in (None, type(None))
