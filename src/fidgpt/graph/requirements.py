"""What a Protocol asks of a part that does not answer it, in words."""

import inspect
from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from fidgpt.graph.hints import (
    can_be_called_as,
    hints_of,
    is_protocol,
    is_unknown,
    members_of,
    methods_of,
    name_of,
    own_method,
)


def asked(value: Any, hint: Any) -> str:
    """Lines on the Protocols of a hint and what a part lacks to answer them; "" without any.

    Args:
      value: what does not fit.
      hint: the annotation that it does not fit.
    """
    protocols = [one for one in members_of(hint) if is_protocol(one)]
    kind = _class_of(value)
    lines = (line for one in protocols for line in _lines(kind, one))
    return "".join(f"\n  {line}" for line in lines)


def _lines(kind: type | None, protocol: Any) -> Iterator[str]:
    doc, name = inspect.getdoc(protocol), name_of(protocol)
    yield f"{name}: {doc.splitlines()[0]}" if doc else f"{name} is what can be called as it is:"
    methods = methods_of(protocol)
    if "forward" in methods:  # of which torch makes the call
        methods.pop("__call__", None)
    for method, wanted in methods.items():
        call = f"It is called as {method}{_parameters(wanted)}"
        if kind is None:
            yield f"{call}."
        elif (own := own_method(kind, method)) is None:
            yield f"{call}, and {kind.__name__} has no {method}."
        elif not can_be_called_as(own, wanted):
            yield f"{call}, and {kind.__name__} has {method}{_parameters(own)}."


def _class_of(value: Any) -> type | None:
    """The class of what a part builds; None where nobody says it."""
    if not isinstance(value, fdl.Buildable):
        return type(value)
    function = fdl.get_callable(value)
    built = function if inspect.isclass(function) else hints_of(function).get("return")
    is_made = not isinstance(value, fdl.Partial)
    is_told = inspect.isclass(built) and not (is_unknown(built) or is_protocol(built))
    return built if is_made and is_told else None


def _parameters(method: Any) -> str:
    """What a method takes, as one would write the call: names and defaults alone."""
    own = list(inspect.signature(method).parameters.values())[1:]
    plain = [one.replace(annotation=one.empty) for one in own]
    text = str(inspect.Signature(plain)) if plain else "()"
    return text.replace(", /", "")
