"""Replacement of components by others."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.assignments import keep_assignments
from fidgpt.graph.edits import Edit, Planned, Remaking, carry_out
from fidgpt.graph.errors import ConfigError, at, nearest, suggest
from fidgpt.graph.fiddle import all_arguments, assign, set_arguments
from fidgpt.graph.formulas import Call, parse_call
from fidgpt.graph.hints import hint_of, is_unknown
from fidgpt.graph.paths import ParameterRef, describe, find_parameter
from fidgpt.graph.replacements import Parts, Reader, part_named, with_arguments
from fidgpt.graph.selectors import find, find_parameters
from fidgpt.graph.values import read_value
from fidgpt.graph.walk import Node, nodes

B = TypeVar("B", bound=fdl.Buildable)


def swapped(part: B, function: Any, *, renamed: Mapping[str, str] | None = None) -> B:
    """A part of the same kind that calls `function`, with the arguments that both have by name.

    Values and tags of a parameter go along, so that a quantity that was heard is still heard;
    parts inside are the same nodes. What `function` has no parameter for is left behind.

    Args:
      part: the part to take from.
      function: what the new one calls.
      renamed: what `function` calls the parameters for which it has another name.
    """
    new = type(part)(function)
    known, names = set_arguments(part), renamed or {}
    for key in all_arguments(part):
        own = names.get(key, key) if isinstance(key, str) else key
        if own not in new.__signature_info__.valid_param_names:
            continue
        for tag in fdl.get_tags(part, key):
            fdl.add_tag(new, own, tag)
        if key in known:
            assign(new, own, known[key])
        keep_assignments(new, part, key, known_as=own)
    return new


def swap_all(root: Any, *functions: Any, by: Any) -> list[fdl.Buildable]:
    """Puts `swapped(part, by)` in place of every part that calls one of `functions`.

    Every place that held a part holds the new one. A part that calls `by` already stays as it is.

    Returns:
      The parts that call `by` now.

    Raises:
      ConfigError: there is none to swap.
    """
    found: list[fdl.Buildable] = []
    for part in find(root, *functions):
        if fdl.get_callable(part) is by:
            found.append(part)
            continue
        new = swapped(part, by)
        for node in nodes(root):
            if node.value is part:
                for path in node.paths:
                    find_parameter(root, path).put(new)
        found.append(new)
    return found


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
    for place in find_parameters(root, selector):
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
        if found := part_named(name, find_parameters(root, selector)[0].hint, parts):
            return found
    if name not in parts:
        raise ConfigError(_no_part(root, selector, text, parts))
    return parts[name]


def _no_part(root: Any, selector: str, text: str, parts: Parts) -> str:
    """Why a text names no part, and what to write in place of it."""
    likely = _likely(root, selector, text, parts)
    if not _is_value(text):
        return f"there is no part {parse_call(text).name!r}. {likely}"
    place, value = find_parameters(root, selector)[0], f"{text.strip():.60} is a value, and no part"
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
            return Reader(root, text, parts).which_fit(find_parameters(root, selector)[0])
    return suggest(name, parts)


def _first(place: ParameterRef, reader: Reader) -> Any:
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
    def read(place: ParameterRef, text: str) -> Any:
        return Reader(root, text, parts).read(place)

    with at(call.name):
        return with_arguments(root, swapped(old, function), call, read, like=old)


def _holding(root: Any, node: Node) -> list[ParameterRef]:
    """The places that hold a node."""
    if not node.parents:
        raise ConfigError("the root of the graph is in no place: begin with another config.")
    return [find_parameter(root, path) for path in node.paths]


def _in_new_parts(planned: list[Planned], news: dict[int, fdl.Buildable]) -> list[Planned]:
    """The same, where what is replaced lies in what is replaced too: in the new part, if at all."""
    moved: list[Planned] = []
    for place, value in planned:
        outer = news.get(id(place.container))
        if outer is None:
            moved.append((place, value))
        elif set_arguments(outer).get(place.key) is place.value:
            hint = hint_of(outer, place.key)
            moved.append((dataclasses.replace(place, container=outer, hint=hint), value))
    return moved
