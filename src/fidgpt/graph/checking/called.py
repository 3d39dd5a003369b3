"""Factories that cannot be called as the places that hold them call them."""

import ast
import collections.abc
import typing
from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from fidgpt.graph.binding.bind import open_parameters
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.signatures.annotations import members_of
from fidgpt.graph.signatures.hints import element_hint, fits, hint_of
from fidgpt.graph.structure.arguments import VARIADIC, every, given
from fidgpt.graph.structure.walk import Node, join, title


def wrong_calls(node: Node) -> Iterator[ConfigError]:
    """What is wrong with a Partial, by the annotation of each place that holds it.

    A place annotated `Callable[[], Block]` calls without arguments; `Callable[..., Block]` says
    nothing, and neither does what is no Callable.
    """
    part = node.value
    is_whole = type(fdl.NO_VALUE) not in map(type, every(part).values())
    for parent, step in node.parents:
        members = [one for hint in _hints(parent, step) for one in members_of(hint)]
        counts = [_num_asked(one) for one in members if fits(part, one)]
        if None in counts or (is_whole and 0 in counts):
            continue
        wrong = [(_with(count), _misfit(part, count)) for count in counts if count is not None]
        if wrong and all(message for _, message in wrong):
            path = join(parent.path, step)
            yield ConfigError(f"{path} is called {wrong[0][0]}, and {wrong[0][1]}", place=path)


def _hints(parent: Node, step: str) -> list[Any]:
    """The annotations of a place: more than one where a list that holds it is shared."""
    key = step[1:] if step.startswith(".") else ast.literal_eval(step[1:-1])
    if isinstance(parent.value, fdl.Buildable):
        return [hint_of(parent.value, key)]
    return [
        element_hint(hint, key) for above, inner in parent.parents for hint in _hints(above, inner)
    ]


def _num_asked(hint: Any) -> int | None:
    """How many arguments an annotation promises to give; None where it leaves that open."""
    if typing.get_origin(hint) is not collections.abc.Callable:
        return None
    asked = typing.get_args(hint)[:1]
    return len(asked[0]) if asked and isinstance(asked[0], list) else None


def _with(count: int) -> str:
    words = {0: "without arguments", 1: "with 1 argument"}
    return words.get(count, f"with {count} arguments")


def _misfit(part: fdl.Buildable, count: int) -> str:
    """What is missing where a part is called with so many arguments; "" where nothing is."""
    known = dict.fromkeys([*given(part), *open_parameters(part)])
    num_given = sum(isinstance(key, int) for key in known)
    names = [key for key in known if isinstance(key, str)]
    signature = part.__signature_info__.signature
    try:
        bound = signature.bind_partial(*[None] * (num_given + count), **dict.fromkeys(names))
    except TypeError:  # some of them are given by name, which an annotation cannot say
        return ""
    missing = [
        name
        for name, one in signature.parameters.items()
        if name not in bound.arguments and one.default is one.empty and one.kind not in VARIADIC
    ]
    if not missing:
        return ""
    verb = "is" if len(missing) == 1 else "are"
    return f"{title(part)} requires {', '.join(missing)}, which {verb} not set."
