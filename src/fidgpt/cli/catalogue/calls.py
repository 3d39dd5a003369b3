"""Calling a function with the arguments that somebody typed, each read by its annotation."""

import inspect
from collections.abc import Callable
from typing import Any

from fidgpt.graph import ConfigError, read_value, suggest
from fidgpt.graph.errors import at
from fidgpt.graph.signatures.annotations import hints_of
from fidgpt.graph.structure.arguments import VARIADIC
from fidgpt.graph.typed.calls import Call


def call_with(function: Callable[..., Any], call: Call, *given: Any) -> Any:
    """What `function` returns for what is `given` and the typed arguments that come after it.

    Raises:
      ConfigError: an argument is unknown, missing, one too many, or does not fit; or the function
        failed, which for a fiddler means that it does not suit the config.
    """
    values = _read_arguments(function, call, skip=len(given))
    parameters = inspect.signature(function).parameters.values()
    nameless = [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY][len(given) :]
    first = [values.pop(name) for name in nameless if name in values]
    return guarded(call.name, function, *given, *first, **values)


def needs_arguments(function: Callable[..., Any], *, given: int = 0) -> bool:
    """Whether a function cannot be called without arguments, past the first that it is `given`."""
    parameters = list(inspect.signature(function).parameters.values())[given:]
    return any(one.default is one.empty and one.kind not in VARIADIC for one in parameters)


def guarded(name: str, function: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    """What a function of somebody's own returns.

    Raises:
      ConfigError: it failed, which for a fiddler means that it does not suit the config.
    """
    try:
        return function(*given, **named)
    except (Exception, SystemExit) as error:  # whatever goes wrong in code of somebody's own
        from fidgpt.cli.mistakes import MISTAKES  # late: they come with torch

        if isinstance(error, MISTAKES):
            raise
        lines = str(error).splitlines() or [""]
        raise ConfigError(
            f"{name} failed, so it may not suit this config.\n"
            f"  {type(error).__name__}: {lines[0]:.200}\n"
            "  --debug shows where."
        ) from error


def _read_arguments(function: Callable[..., Any], call: Call, *, skip: int) -> dict[str, Any]:
    """The values of a function's parameters past the first `skip`, by name; defaults left out."""
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    names = [parameter.name for parameter in parameters if parameter.kind not in VARIADIC]
    if len(call.positional) > len(names):
        raise ConfigError(
            f"{call.name} takes {_count(names)}, and is given {len(call.positional)}."
        )
    texts = dict(zip(names, call.positional, strict=False))
    for name, text in call.named.items():
        if name not in names:
            raise ConfigError(f"{call.name} has no argument {name!r}. {suggest(name, names)}")
        if name in texts:
            raise ConfigError(f"{call.name} is given {name} twice.")
        texts[name] = text
    for parameter in parameters:
        required = parameter.name in names and parameter.default is inspect.Parameter.empty
        if required and parameter.name not in texts:
            raise ConfigError(
                f"{call.name} needs {parameter.name}: {call.name}({parameter.name}=...)."
            )
    return {name: _read(function, name, text) for name, text in texts.items()}


def _read(function: Callable[..., Any], name: str, text: str) -> Any:
    with at(name):
        return read_value(text, hints_of(function).get(name, Any))


def _count(names: list[str]) -> str:
    if not names:
        return "no arguments"
    return f"{len(names)} {'argument' if len(names) == 1 else 'arguments'} ({', '.join(names)})"
