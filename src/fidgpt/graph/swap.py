"""Replacement of what nodes call."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.assignments import keep_assignments
from fidgpt.graph.edits import Edit, Planned, builds_same, carry_out
from fidgpt.graph.errors import ConfigError, at, nearest, suggest
from fidgpt.graph.fiddle import all_arguments, assign, parameter_names, set_arguments
from fidgpt.graph.formulas import parse_call
from fidgpt.graph.hints import is_unknown
from fidgpt.graph.paths import ParameterRef, describe, find_parameter
from fidgpt.graph.replacements import Parts, part_named, read, read_part, which_fit, with_arguments
from fidgpt.graph.selectors import find, find_parameters
from fidgpt.graph.values import read_value
from fidgpt.graph.walk import nodes

B = TypeVar("B", bound=fdl.Buildable)


def swapped(part: B, function: Any, *, renamed: Mapping[str, str] | None = None) -> B:
    """Return a node that calls `function`, with the arguments that both take.

    Values and tags of a parameter are kept, so that an inherited value stays inherited; inner
    nodes are the same. Arguments that `function` does not take are dropped.

    Args:
      part: the node to replace; it is not changed.
      function: what the new one calls.
      renamed: the names of parameters in `function`, where they differ.
    """
    new = type(part)(function)
    known, names = set_arguments(part), renamed or {}
    for key in all_arguments(part):
        own = names.get(key, key) if isinstance(key, str) else key
        if own not in parameter_names(new):
            continue
        for tag in fdl.get_tags(part, key):
            fdl.add_tag(new, own, tag)
        if key in known:
            assign(new, own, known[key])
        keep_assignments(new, part, key, known_as=own)
    return new


def swap_all(root: Any, *functions: Any, by: Any) -> list[fdl.Buildable]:
    """Replace every node that calls one of `functions` by `swapped(node, by)`.

    All parameters that held a node hold the new one. A node that calls `by` already stays.

    Returns:
      The nodes that call `by` now.

    Raises:
      ConfigError: there is none to replace.
    """
    found = find(root, *functions)
    news = {id(part): swapped(part, by) for part in found if fdl.get_callable(part) is not by}
    carry_out(_replacements(root, news))
    return [news.get(id(part), part) for part in found]


def use(root: Any, selector: str, text: str, *, parts: Parts) -> list[Edit]:
    """Replace each node that a selector matches by one that `text` names.

    The new node keeps the values, tags and inner nodes of the parameters that both have, and then
    takes the arguments in the text. A shared node stays one node: all parameters that hold it hold
    the new one, whichever of them are matched. Parameters that are unset or None get a new node.

    Args:
      root: the graph.
      selector: a path or a selector of many parameters.
      text: a name, or a call such as `RoPE(theta=5e5)`.
      parts: the constructors that may be named.

    Returns:
      What changed: each parameter that holds another node now.

    Raises:
      ConfigError: there is no such part or argument, a parameter holds a plain value, or the new
        node does not fit there; the graph is as it was.
    """
    call = parse_call(text)
    function = _function(root, selector, text, parts)
    planned: list[Planned] = []
    olds: dict[int, ParameterRef] = {}
    for ref in find_parameters(root, selector):
        if isinstance(ref.value, fdl.Buildable) and not isinstance(ref.value, TaggedValueCls):
            olds.setdefault(id(ref.value), ref)
        else:
            planned.append((ref, _first(root, ref, text, parts)))
    news: dict[int, fdl.Buildable] = {}
    for key, ref in olds.items():
        with at(call.name):
            news[key] = with_arguments(root, ref, swapped(ref.value, function), call, parts)
    same = builds_same(root, keeps_sharing=True)
    return carry_out([*planned, *_replacements(root, news)], same=same)


def _replacements(root: Any, news: Mapping[int, fdl.Buildable]) -> Iterator[Planned]:
    """Yield every parameter that holds a node to be replaced, with the new node.

    Inside another replaced node it is the parameter of the new one, if that holds the same.

    Args:
      root: the graph.
      news: the new nodes, by the identities of the old ones.
    """
    for node in nodes(root) if news else ():
        if (new := news.get(id(node.value))) is None:
            continue
        if not node.parents:
            raise ConfigError("nothing holds the root of the graph: begin with another config.")
        for ref in (find_parameter(root, path) for path in node.paths):
            outer = news.get(id(ref.container))
            if outer is None:
                yield ref, new
            elif set_arguments(outer).get(ref.key) is node.value:
                yield dataclasses.replace(ref, container=outer), new


def _function(root: Any, selector: str, text: str, parts: Parts) -> Callable[..., Any]:
    """Return what the new node calls: a class in the first parameter's hint, or a known one."""
    name = parse_call(text).name
    with contextlib.suppress(ConfigError):  # of a path or a module, reported below
        if found := part_named(name, find_parameters(root, selector)[0].hint, parts):
            return found
    if name not in parts:
        raise ConfigError(_no_part(root, selector, text, parts))
    return parts[name]


def _no_part(root: Any, selector: str, text: str, parts: Parts) -> str:
    """Say why a text names no part, and what to write in place of it."""
    name, is_value, likely = parse_call(text).name, False, ""
    with contextlib.suppress(ConfigError):  # what means nothing anywhere
        is_value = not isinstance(read_value(text, Any), str)
    with contextlib.suppress(ConfigError):  # there is no such parameter either
        if not nearest(name, parts):
            likely = which_fit(find_parameters(root, selector)[0], parts)
    likely = likely or suggest(name, parts)
    if not is_value:
        return f"there is no part {name!r}. {likely}"
    ref = find_parameters(root, selector)[0]
    with contextlib.suppress(ConfigError):  # a value that does not fit
        read(root, ref, text, parts)
        likely = f"set:{selector}={text.strip()} sets it."
    return f"{text.strip():.60} is a value, not a part. {likely}"


def _first(root: Any, ref: ParameterRef, text: str, parts: Parts) -> Any:
    """Return a node for a parameter that holds none, or one that computes the number it takes."""
    is_empty = ref.value is None or ref.value is fdl.NO_VALUE
    if is_empty or not is_unknown(ref.hint):
        with at(ref.path):
            part = read_part(root, ref, text, parts)
        if part is not fdl.NO_VALUE:
            return part
    if is_empty:
        return read(root, ref, text, parts)
    raise ConfigError(
        f"{ref.path} is {describe(ref.value)}, not a part: set:{ref.path}=... sets a value."
    )
