"""When two values are the same, and a key for each."""

import json
from typing import Any

from fidgpt import errors
from fidgpt.graph import codec, fiddle
from fidgpt.graph.walk import LEAVES, is_node, parts

to_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode


def value_key(value: Any) -> str:
    """Return a text that is the same for values with the same form in a file.

    1, 1.0 and True differ; what has no form in a file is equal to itself alone.
    """
    try:
        return to_json(codec.encode(value))
    except errors.ConfigError:
        return f"object {id(value)}"


def is_same(left: Any, right: Any) -> bool:
    """Return whether two values are one node, or equal plain values: 1 is not 1.0, nor 0.0 -0.0."""
    if left is right:
        return True
    if fiddle.kind_of(left) is not fiddle.kind_of(right):
        return False
    if type(left) in LEAVES:
        return repr(left) == repr(right)
    has_parts = is_node(left) and (parts(left) or parts(right))
    return not has_parts and value_key(left) == value_key(right)
