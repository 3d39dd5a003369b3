"""Putting another part in the place of one, with all that both have."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.edits.alike import Remaking
from fidgpt.graph.edits.calling import with_arguments
from fidgpt.graph.edits.edit import Edit, Planned, carry_out
from fidgpt.graph.edits.reading import Parts, Reader, part_named
from fidgpt.graph.edits.swap import swapped
from fidgpt.graph.errors import ConfigError, at, nearest, suggest
from fidgpt.graph.selecting.paths import find_place
from fidgpt.graph.selecting.place import Place, describe
from fidgpt.graph.selecting.selectors import places
from fidgpt.graph.signatures.annotations import is_unknown
from fidgpt.graph.signatures.hints import hint_of
from fidgpt.graph.structure.arguments import given
from fidgpt.graph.structure.walk import Node, nodes
from fidgpt.graph.typed.calls import Call, parse_call
from fidgpt.graph.typed.values import read_value


def use(root: Any, selector: str, text: str, *, parts: Parts) -> list[Edit]:
    """Puts a part that `text` names in the place of each part that a selector names.

    The new part keeps the values, tags and inner parts of the parameters that both have, and then
    takes the arguments in the text. A part that several places hold stays one part, which all of
    them hold, whichever of them the selector names. Where nothing is set, or None, the new part
    is put without a predecessor.

    Args:
      root: the graph.
      selector: a path or a selector of many places.
      text: a name, or a call such as `RoPE(theta=5e5)`.
      parts: the constructors that may be named.

    Returns:
      What changed: each place that holds another part now.

    Raises:
      ConfigError: there is no such part or argument, a place holds a plain value, or the new part
        does not fit there; the graph is as it was.
    """
    call = parse_call(text)
    function = _function(root, selector, text, parts)
    planned: list[Planned] = []
    olds: dict[int, fdl.Buildable] = {}
    for place in places(root, selector):
        if isinstance(place.value, fdl.Buildable) and not isinstance(place.value, TaggedValueCls):
            olds[id(place.value)] = place.value
        else:
            planned.append((place, _first(place, Reader(root, text, parts))))
    news = {key: _new(root, old, function, call, parts) for key, old in olds.items()}
    held = [node for node in nodes(root) if id(node.value) in news] if news else []
    planned += [(place, news[id(node.value)]) for node in held for place in _holding(root, node)]
    remaking = Remaking(root, keeps_sharing=True)
    return carry_out(_in_new_parts(planned, news), same=remaking.is_same)


def _function(root: Any, selector: str, text: str, parts: Parts) -> Callable[..., Any]:
    """What the new part calls: a class that the first place asks for, or a known one."""
    name = parse_call(text).name
    with contextlib.suppress(ConfigError):  # of a place or a module; what follows tells it
        if found := part_named(name, places(root, selector)[0].hint, parts):
            return found
    if name not in parts:
        raise ConfigError(_no_part(root, selector, text, parts))
    return parts[name]


def _no_part(root: Any, selector: str, text: str, parts: Parts) -> str:
    """Why a text names no part, and what to write in place of it."""
    likely = _likely(root, selector, text, parts)
    if not _is_value(text):
        return f"there is no part {parse_call(text).name!r}. {likely}"
    place, value = places(root, selector)[0], f"{text.strip():.60} is a value, and no part"
    with contextlib.suppress(ConfigError):  # one that does not fit
        Reader(root, text, parts).read(place)
        return f"{value}: set:{selector}={text.strip()} sets it."
    return f"{value}. {likely}"


def _is_value(text: str) -> bool:
    try:
        return not isinstance(read_value(text, Any), str)
    except ConfigError:  # what means nothing anywhere
        return False


def _likely(root: Any, selector: str, text: str, parts: Parts) -> str:
    """What to write in place of a name that there is not: one like it, or one that fits."""
    name = parse_call(text).name
    if not nearest(name, parts):
        with contextlib.suppress(ConfigError):  # there is no such place either
            return Reader(root, text, parts).which_fit(places(root, selector)[0])
    return suggest(name, parts)


def _first(place: Place, reader: Reader) -> Any:
    """A part for a place that holds none, be it one that computes the number that it takes."""
    is_empty = place.value is None or place.value is fdl.NO_VALUE
    part = reader.named(place) if is_empty or not is_unknown(place.hint) else fdl.NO_VALUE
    if part is not fdl.NO_VALUE:
        return part
    if is_empty:
        return reader.read(place)
    raise ConfigError(
        f"{place.path} is {describe(place.value)}, and no part: set:{place.path}=... sets a value."
    )


def _new(
    root: Any, old: fdl.Buildable, function: Callable[..., Any], call: Call, parts: Parts
) -> fdl.Buildable:
    def read(place: Place, text: str) -> Any:
        return Reader(root, text, parts).read(place)

    with at(call.name):
        return with_arguments(root, swapped(old, function), call, read, like=old)


def _holding(root: Any, node: Node) -> list[Place]:
    """The places that hold a node."""
    if not node.parents:
        raise ConfigError("the root of the graph is in no place: begin with another config.")
    return [find_place(root, path) for path in node.paths]


def _in_new_parts(planned: list[Planned], news: dict[int, fdl.Buildable]) -> list[Planned]:
    """The same, where what is replaced lies in what is replaced too: in the new part, if at all."""
    moved: list[Planned] = []
    for place, value in planned:
        outer = news.get(id(place.container))
        if outer is None:
            moved.append((place, value))
        elif given(outer).get(place.key) is place.value:
            hint = hint_of(outer, place.key)
            moved.append((dataclasses.replace(place, container=outer, hint=hint), value))
    return moved
