"""Putting one part in the place of another without losing what both know."""

from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.graph.arguments import assign, every, given
from fidgpt.graph.history.sayings import keep_sayings

B = TypeVar("B", bound=fdl.Buildable)


def swapped(part: B, function: Any) -> B:
    """A part of the same kind that calls `function`, with the arguments that both have by name.

    Values and tags of a parameter go along, so that a quantity that was heard is still heard;
    parts inside are the same nodes. What `function` has no parameter for is left behind.
    """
    new = type(part)(function)
    known = given(part)
    for key in every(part):
        if key not in new.__signature_info__.valid_param_names:
            continue
        for tag in fdl.get_tags(part, key):
            fdl.add_tag(new, key, tag)
        if key in known:
            assign(new, key, known[key])
        keep_sayings(new, part, key)
    return new
