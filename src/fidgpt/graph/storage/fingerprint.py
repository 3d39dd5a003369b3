"""The identity of a graph: a hash of all that decides what it builds."""

import hashlib
import json
from typing import Any

import fiddle as fdl

from fidgpt.graph.arguments import default_of, every
from fidgpt.graph.bind import bind
from fidgpt.graph.errors import at
from fidgpt.graph.storage.codec import encode, encode_default
from fidgpt.graph.storage.names import name_of
from fidgpt.graph.walk import Node, join, nodes, parts, step_to


def fingerprint(root: fdl.Buildable) -> str:
    """A hash of the bound graph, 64 hexadecimal digits.

    Two graphs have the same one exactly if they call the same things with the same values,
    defaults included, share the same nodes, and carry the same tags. It does not depend on who
    set what, in which order, on which machine. A value that was said and one that was heard are
    the same value.

    Raises:
      ConfigError: the graph cannot be bound, or holds what has no name.
    """
    bound = bind(root)
    paths = {id(node.value): node.path for node in nodes(bound)}
    content = {node.path: _content(node, paths) for node in parts(bound)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _content(node: Node, paths: dict[int, str]) -> list[Any]:
    part, arguments = node.value, every(node.value)
    values: dict[str, Any] = {}
    for key, value in arguments.items():
        if value is default_of(part, key):  # which need not have a form in a file
            values[str(key)] = encode_default(value)
        elif value is not fdl.NO_VALUE:
            with at(join(node.path, step_to(key))):
                values[str(key)] = encode(value, paths)
    with at(node.path or "the root"):
        called = name_of(fdl.get_callable(part))
    tags = {str(key): sorted(map(name_of, fdl.get_tags(part, key))) for key in arguments}
    return [type(part).__name__, called, values, tags]
