"""A graph as lines `path = value`, which are easy to search, to sort and to compare."""

from typing import Any

from fidgpt.graph.views.outline import rows


def flat(root: Any, *, defaults: bool = False) -> str:
    """A line for every argument that is set or heard, in the order in which one reads a graph.

    Shared parts are marked `&path` and named `*path`, and heard values show from where, as in an
    outline. With `defaults`, what stands by default is among them.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    return "".join(
        f"{row.path} = {row.text}\n"
        for row in rows(root, defaults=defaults)
        if row.path and row.text
    )


def said(root: Any) -> str:
    """The lines of `flat` that say something: no default, and nothing that is heard.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    return "".join(
        f"{row.path} = {row.text}\n"
        for row in rows(root)
        if row.path and row.text and row.kind in ("said", "part")
    )
