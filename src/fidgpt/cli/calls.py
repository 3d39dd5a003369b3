"""Reading `NAME` and `NAME(argument, name=argument)` as somebody types them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fidgpt.graph import ConfigError, read_value, suggest
from fidgpt.graph.annotations import hints_of


@dataclass(frozen=True)
class Call:
    """A name and the texts of its arguments."""

    name: str
    positional: list[str]
    named: dict[str, str]


def parse_call(text: str) -> Call:
    """Splits a call into its texts; values are read later, by the function's annotations.

    Raises:
      ConfigError: the parentheses or the commas are wrong.
    """
    name, parenthesis, rest = text.partition("(")
    if not parenthesis:
        return Call(text.strip(), [], {})
    if not rest.rstrip().endswith(")"):
        raise ConfigError(f"{text!r} opens a parenthesis that it does not close.")
    positional: list[str] = []
    named: dict[str, str] = {}
    for argument in split_at_commas(rest.rstrip()[:-1]):
        key, equals, value = argument.partition("=")
        if equals and key.strip().isidentifier():
            named[key.strip()] = value.strip()
        elif named:
            raise ConfigError(f"{argument.strip()!r} has no name and follows one that has.")
        else:
            positional.append(argument.strip())
    return Call(name.strip(), positional, named)


def read_arguments(function: Callable[..., Any], call: Call, *, skip: int = 0) -> list[Any]:
    """The values of all of a function's parameters past the first `skip`, in their order.

    Raises:
      ConfigError: an argument is unknown, missing, one too many, or does not fit.
    """
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    names = [parameter.name for parameter in parameters]
    if len(call.positional) > len(names):
        raise ConfigError(f"{call.name} takes {_count(names)}, not {len(call.positional)}.")
    texts = dict(zip(names, call.positional, strict=False))
    for name, text in call.named.items():
        if name not in names:
            raise ConfigError(f"{call.name} has no argument {name!r}. {suggest(name, names)}")
        if name in texts:
            raise ConfigError(f"{call.name} is given {name} twice.")
        texts[name] = text
    return [_read(call, parameter, texts, function) for parameter in parameters]


def _read(
    call: Call, parameter: inspect.Parameter, texts: dict[str, str], function: Callable[..., Any]
) -> Any:
    if parameter.name not in texts:
        if parameter.default is inspect.Parameter.empty:
            raise ConfigError(
                f"{call.name} needs {parameter.name}: {call.name}({parameter.name}=...)."
            )
        return parameter.default
    hint = hints_of(function).get(parameter.name, Any)
    try:
        return read_value(texts[parameter.name], hint)
    except ConfigError as error:
        raise ConfigError(f"{parameter.name}: {error}") from None


def split_at_commas(text: str) -> list[str]:
    """Pieces between commas that stand outside of brackets and quotes."""
    pieces, depth, quote, start = [], 0, "", 0
    for i, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            pieces.append(text[start:i])
            start = i + 1
    pieces.append(text[start:])
    return [piece for piece in pieces if piece.strip()]


def _count(names: list[str]) -> str:
    return f"{len(names)} arguments ({', '.join(names)})" if names else "no arguments"
