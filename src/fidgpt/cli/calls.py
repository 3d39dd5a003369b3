"""Reading `NAME` and `NAME(argument, name=argument)` as somebody types them, and calling it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fidgpt.cli.mistakes import MISTAKES
from fidgpt.graph import ConfigError, read_value, suggest
from fidgpt.graph.annotations import hints_of
from fidgpt.graph.errors import at


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
        raise ConfigError(f"{text!r:.80} opens a parenthesis and does not end with its other half.")
    positional: list[str] = []
    named: dict[str, str] = {}
    for argument in split_at_commas(rest.rstrip()[:-1]):
        key, equals, value = argument.partition("=")
        if equals and key.strip().isidentifier():
            if key.strip() in named:
                raise ConfigError(f"{name.strip()} is given {key.strip()} twice.")
            named[key.strip()] = value.strip()
        elif named:
            raise ConfigError(f"{argument.strip()!r} has no name and follows one that has.")
        else:
            positional.append(argument.strip())
    return Call(name.strip(), positional, named)


def call_with(function: Callable[..., Any], call: Call, *given: Any) -> Any:
    """What `function` returns for what is `given` and the typed arguments that come after it.

    Raises:
      ConfigError: an argument is unknown, missing, one too many, or does not fit; or the function
        failed, which for a fiddler means that it does not suit the config.
    """
    arguments = _read_arguments(function, call, skip=len(given))
    try:
        return function(*given, **arguments)
    except MISTAKES:
        raise
    except Exception as error:  # whatever goes wrong in code that a user may have written
        lines = str(error).splitlines() or [""]
        raise ConfigError(
            f"{call.name} failed, so it may not suit this config.\n"
            f"  {type(error).__name__}: {lines[0]:.200}\n"
            "  --debug shows where."
        ) from error


def _read_arguments(function: Callable[..., Any], call: Call, *, skip: int) -> dict[str, Any]:
    """The values of a function's parameters past the first `skip`, by name; defaults left out."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    names = [parameter.name for parameter in parameters if parameter.kind not in variadic]
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


def split_at_commas(text: str, *, quotes: str = "'\"") -> list[str]:
    """Pieces between commas that stand outside of brackets and quotes.

    A quote that is not closed is an apostrophe. A comma may stand at the end.

    Raises:
      ConfigError: there is nothing between two commas.
    """
    pieces, depth, quote, start = [], 0, "", 0
    for i, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in quotes:
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            pieces.append(text[start:i])
            start = i + 1
    if quote:
        return split_at_commas(text, quotes=quotes.replace(quote, ""))
    pieces.append(text[start:])
    if not pieces[-1].strip():
        pieces.pop()
    if not all(piece.strip() for piece in pieces):
        raise ConfigError(f"{text!r:.80} has a comma with nothing before it.")
    return pieces


def _count(names: list[str]) -> str:
    if not names:
        return "no arguments"
    return f"{len(names)} {'argument' if len(names) == 1 else 'arguments'} ({', '.join(names)})"
