"""Finding parts of a graph by what they call; an empty selection is an error, never silence."""

from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError
from fidgpt.graph.selecting.naming import nobody_carries
from fidgpt.graph.structure.arguments import Key, assign, every, given
from fidgpt.graph.structure.walk import Node, nodes, parts, title


def find(root: Any, *functions: Any) -> list[fdl.Buildable]:
    """Every part under `root` that calls one of `functions` or a subclass of one, each once.

    Raises:
      ConfigError: there is none.
    """
    found = [node.value for node in parts(root) if _calls(node.value, functions)]
    if not found:
        wanted = " or ".join(getattr(f, "__name__", str(f)) for f in functions)
        raise ConfigError(f"{title(root)} holds no {wanted}, so there is nothing to change.")
    return found


def holders(root: Any, part: fdl.Buildable) -> list[Node]:
    """The nodes that hold a part; more than one where it is shared."""
    return [parent for node in nodes(root) if node.value is part for parent, _ in node.parents]


def tagged(root: Any, tag: type[fdl.Tag]) -> list[tuple[fdl.Buildable, Key]]:
    """Every (part, parameter) under `root` that carries a tag or one that inherits from it."""
    return [
        (node.value, key)
        for node in parts(root)
        for key in every(node.value)
        if any(issubclass(own, tag) for own in fdl.get_tags(node.value, key))
    ]


def set_tag(root: Any, tag: type[fdl.Tag], value: Any) -> int:
    """Says a quantity anew wherever it is said; returns at how many places.

    Parameters that hear the quantity are left open, and follow. Where nobody says it, because a
    default stands, every parameter that would hear it says it from now on.

    Raises:
      ConfigError: no parameter of the graph carries the tag.
    """
    carriers = tagged(root, tag)
    if not carriers:
        carried = {own for part, key in tagged(root, fdl.Tag) for own in _tags(part, key)}
        raise ConfigError(nobody_carries(tag, carried, where=title(root)))
    saying = [(part, key) for part, key in carriers if key in given(part)]
    for part, key in saying or carriers:
        assign(part, key, value)
    return len(saying or carriers)


def _tags(part: fdl.Buildable, key: Key) -> frozenset[Any]:
    return fdl.get_tags(part, key)


def _calls(part: fdl.Buildable, functions: tuple[Any, ...]) -> bool:
    called = fdl.get_callable(part)
    return any(
        called is function
        or (
            isinstance(called, type) and isinstance(function, type) and issubclass(called, function)
        )
        for function in functions
    )
