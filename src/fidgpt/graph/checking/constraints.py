"""Constraints that span several arguments, asked of a graph before anything is built."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import fiddle as fdl

from fidgpt.graph.structure.arguments import every, parameter_of
from fidgpt.graph.structure.quantities import computed
from fidgpt.graph.structure.walk import Node, title

_OPEN_ENDED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_MOST_LINES = 5  # of a message that somebody else wrote
Constraint = Callable[[Any], None]


def broken(nodes: Iterable[Node]) -> Iterator[str]:
    """What the constructors of a graph's parts refuse, each with its place.

    A constructor says what must hold between its arguments in a static method `check_arguments`,
    which takes some of them by name and raises ValueError; its `__init__` calls the same one, so
    that whoever uses it without a graph is told too. It is asked as soon as all of these
    arguments are known.
    """
    for node in nodes:
        if isinstance(node.value, fdl.Buildable) and (ask := _check_of(node.value)):
            if strange := [name for name in _names(ask) if parameter_of(node.value, name) is None]:
                yield (
                    f"{title(node.value)}.check_arguments asks for {', '.join(strange)}, which "
                    f"{title(node.value)} does not take: it is a static method that takes some of "
                    "the constructor's arguments by name."
                )
                continue
            known = _arguments_of(node.value, _names(ask))
            if known is not None:
                yield from _refusal(node, ask, known)


def broken_of_whole(root: Any, constraints: Iterable[Constraint]) -> Iterator[str]:
    """What functions that look at the whole bound graph refuse, by raising ValueError."""
    for constraint in constraints:
        try:
            constraint(root)
        except ValueError as error:
            yield str(error)
        except Exception as error:  # whatever somebody's own function does
            name = getattr(constraint, "__name__", repr(constraint))
            yield f"the constraint {name} failed: {type(error).__name__}: {_told(error)}"


def _check_of(part: fdl.Buildable) -> Callable[..., Any] | None:
    ask = getattr(fdl.get_callable(part), "check_arguments", None)
    return ask if callable(ask) else None


def _arguments_of(part: fdl.Buildable, names: tuple[str, ...]) -> dict[str, Any] | None:
    """The named arguments; None while one of them is not known."""
    arguments = every(part)
    known = {name: computed(arguments.get(name, fdl.NO_VALUE)) for name in names}
    return None if fdl.NO_VALUE in known.values() else known


def _refusal(node: Node, ask: Callable[..., Any], known: dict[str, Any]) -> Iterator[str]:
    try:
        ask(**known)
    except ValueError as error:
        yield f"{node.path or 'the root'} ({title(node.value)}): {_told(error)}"
    except TypeError:  # a value of another type, which is reported as such
        return
    except Exception as error:  # a mistake in the check, or an assertion
        kind = type(error).__name__
        yield f"{node.path or 'the root'} ({title(node.value)}): {kind}: {_told(error)}"


def _told(error: Exception) -> str:
    return "\n".join(str(error).splitlines()[:_MOST_LINES]) or "its arguments do not fit"


@functools.lru_cache(maxsize=1024)
def _names(ask: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(ask).parameters.values()
    return tuple(one.name for one in parameters if one.kind not in _OPEN_ENDED)
