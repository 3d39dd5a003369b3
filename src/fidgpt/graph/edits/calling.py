"""Parts made from a call that somebody typed: `RoPE(theta=5e5)`."""

from collections.abc import Callable
from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError, suggest
from fidgpt.graph.selecting.place import Place
from fidgpt.graph.signatures.hints import hint_of
from fidgpt.graph.structure.arguments import VARIADIC, every
from fidgpt.graph.structure.walk import join, parts, step_to, title
from fidgpt.graph.typed.calls import Call


def with_arguments(
    root: Any,
    part: fdl.Buildable,
    call: Call,
    read: Callable[[Place, str], Any],
    *,
    like: Any = fdl.NO_VALUE,
) -> fdl.Buildable:
    """The part with the arguments of a call, each `read` for its place.

    A required parameter that the call leaves out is left open, to be heard, where the parameter
    of that name carries a tag in the part that this one is `like`, or everywhere in the graph.

    Raises:
      ConfigError: an argument is unknown, given twice, or does not fit.
    """
    for name, text in _texts(part, call).items():
        place = Place(
            part, name, hint_of(part, name), join(title(part), step_to(name)), title(part)
        )
        value = read(place, text)
        place.refuse(value)
        place.fill(value)
    leave_open(root, part, like)
    return part


def leave_open(root: Any, part: fdl.Buildable, like: Any = fdl.NO_VALUE) -> None:
    """Tags required parameters that have no value, as their namesakes are tagged."""
    unset = [
        key
        for key, value in every(part).items()
        if value is fdl.NO_VALUE and isinstance(key, str) and not fdl.get_tags(part, key)
    ]
    for key in unset:
        for tag in _tags_of_namesakes(root, key, like):
            fdl.add_tag(part, key, tag)


def _tags_of_namesakes(root: Any, key: str, like: Any) -> frozenset[Any]:
    if isinstance(like, fdl.Buildable) and key in every(like):
        return fdl.get_tags(like, key)
    carried = {
        frozenset(tags) for node in parts(root) if (tags := node.value.__argument_tags__.get(key))
    }
    return carried.pop() if len(carried) == 1 else frozenset()


def _texts(part: fdl.Buildable, call: Call) -> dict[str, str]:
    """The texts of a call's arguments by parameter."""
    parameters = part.__signature_info__.parameters
    names = [name for name, one in parameters.items() if one.kind not in VARIADIC]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    positional = [
        name
        for name, one in parameters.items()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if len(call.positional) > len(positional):
        raise ConfigError(
            f"{call.name} takes {len(positional)} arguments without their names, and is given "
            f"{len(call.positional)}. {suggest('', names)}"
        )
    texts = dict(zip(positional, call.positional, strict=False))
    for name, text in call.named.items():
        if name not in names and not takes_any:
            raise ConfigError(f"{call.name} has no argument {name!r}. {suggest(name, names)}")
        if name in texts:
            raise ConfigError(f"{call.name} is given {name} twice.")
        texts[name] = text
    return texts
