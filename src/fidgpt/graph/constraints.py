"""Constraints between parameters, checked on the bound graph."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError
from fidgpt.graph.fiddle import VARIADIC, all_arguments, parameter_of
from fidgpt.graph.hints import computed
from fidgpt.graph.walk import IS_PART, Node, join, step_to, title


def shown(told: str, arguments: Mapping[Any, Any]) -> list[str]:
    """The names of the arguments that a text shows with their values, as `f"{name=}"` does."""
    return [
        name
        for name, value in arguments.items()
        if f"{name}=" in told and _stands_in(f"{name}={value!r}", told)
    ]


def shown_last(told: str, arguments: Mapping[str, Any]) -> list[str]:
    """The names of those that are, or hold, a number behind the last colon of a text.

    So torch's optimizers refuse: `Invalid learning rate: -1.0`.
    """
    last = told.rpartition(":")[2].replace(",", " ").split()
    return [
        name
        for name, value in arguments.items()
        if any(repr(one) in last for one in (value if isinstance(value, list | tuple) else [value]))
    ]


def _stands_in(words: str, told: str) -> bool:
    """Whether a text has some words that are no part of a longer name or number."""
    return re.search(rf"(?<![\w.\]]){re.escape(words)}(?!\w|\.\d)", told) is not None


_MOST_LINES = 5  # of a message that somebody else wrote
Constraint = Callable[[Any], None]


def broken(nodes: Iterable[Node]) -> Iterator[ConfigError]:
    """What the constructors of a graph's parts refuse, each with its place.

    A constructor says what must hold between its arguments in a static method `check_arguments`,
    which takes some of them by name and raises ValueError; its `__init__` calls the same one, so
    that whoever uses it without a graph is told too. It is asked as soon as all of these
    arguments are known.
    """
    for node in nodes:
        if isinstance(node.value, fdl.Buildable) and (ask := _check_of(node.value)):
            if strange := [name for name in _names(ask) if parameter_of(node.value, name) is None]:
                if not _is_own(node.value):  # a subclass may choose some of the arguments itself
                    continue
                yield ConfigError(
                    f"{title(node.value)}.check_arguments asks for {', '.join(strange)}, which "
                    f"{title(node.value)} does not take: it is a static method that takes some of "
                    "the constructor's arguments by name."
                )
                continue
            known = _arguments_of(node.value, _names(ask))
            if known is not None:
                yield from _refusal(node, ask, known)


def broken_of_whole(root: Any, constraints: Iterable[Constraint]) -> Iterator[ConfigError]:
    """What functions that look at the whole bound graph refuse, by raising ValueError.

    A ConfigError says by its `sources` which values it is about, wherever they stand.
    """
    for constraint in constraints:
        try:
            constraint(root)
        except ConfigError as error:
            yield from error.mistakes
        except ValueError as error:
            yield ConfigError(str(error), sources=_shown(str(error), root, ""))
        except Exception as error:  # whatever somebody's own function does
            name = getattr(constraint, "__name__", repr(constraint))
            yield ConfigError(
                f"the constraint {name} failed: {type(error).__name__}: {_told(error)}"
            )


def refused(path: str, part: fdl.Buildable, told: str) -> ConfigError:
    """What a constructor says against its arguments, as a mistake of its part.

    Args:
      path: of the part.
      part: the part.
      told: the constructor's words. What they show as `name=value` is what they are about; where
        they show no argument, it is the whole part.
    """
    message = f"{path or 'the root'} ({title(part)}): {told}"
    return ConfigError(message, place=path, sources=_shown(told, part, path))


def _shown(told: str, part: Any, path: str) -> list[str]:
    """The paths of a part's arguments that somebody's words show."""
    arguments = all_arguments(part) if IS_PART[type(part)] else {}
    known = {key: computed(value) for key, value in arguments.items()}
    return [join(path, step_to(key)) for key in shown(told, known)]


def _check_of(part: fdl.Buildable) -> Callable[..., Any] | None:
    ask = getattr(fdl.get_callable(part), "check_arguments", None)
    return ask if callable(ask) else None


def _is_own(part: fdl.Buildable) -> bool:
    """Whether a constructor has the check itself, rather than from a class it inherits from."""
    return "check_arguments" in vars(fdl.get_callable(part))


def _arguments_of(part: fdl.Buildable, names: tuple[str, ...]) -> dict[str, Any] | None:
    """The named arguments; None while one of them is not known."""
    arguments = all_arguments(part)
    known = {name: computed(arguments.get(name, fdl.NO_VALUE)) for name in names}
    return None if fdl.NO_VALUE in known.values() else known


def _refusal(node: Node, ask: Callable[..., Any], known: dict[str, Any]) -> Iterator[ConfigError]:
    try:
        ask(**known)
    except ValueError as error:
        yield refused(node.path, node.value, _told(error))
    except TypeError:  # a value of another type, which is reported as such
        return
    except Exception as error:  # a mistake in the check, or an assertion
        yield refused(node.path, node.value, f"{type(error).__name__}: {_told(error)}")


def _told(error: Exception) -> str:
    return "\n".join(str(error).splitlines()[:_MOST_LINES]) or "its arguments do not fit"


@functools.lru_cache(maxsize=1024)
def _names(ask: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(ask).parameters.values()
    return tuple(one.name for one in parameters if one.kind not in VARIADIC)
