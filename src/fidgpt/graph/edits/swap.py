"""Putting one part in the place of another without losing what both know."""

from collections.abc import Mapping
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.graph.history.sayings import keep_sayings
from fidgpt.graph.selecting.paths import find_place
from fidgpt.graph.selecting.select import find
from fidgpt.graph.structure.arguments import assign, every, given
from fidgpt.graph.structure.walk import nodes

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
    known, names = given(part), renamed or {}
    for key in every(part):
        own = names.get(key, key) if isinstance(key, str) else key
        if own not in new.__signature_info__.valid_param_names:
            continue
        for tag in fdl.get_tags(part, key):
            fdl.add_tag(new, own, tag)
        if key in known:
            assign(new, own, known[key])
        keep_sayings(new, part, key, known_as=own)
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
                    find_place(root, path).put(new)
        found.append(new)
    return found
