"""A graph as what it changes in another one that it began with."""

from typing import Any

from fidgpt.graph.difference.diff import diff
from fidgpt.graph.difference.text import diff_text


def since(base: Any, root: Any, *, name: str) -> str:
    """The name of the graph that another began with, and a line for each difference.

    Raises:
      ConfigErrors: one of the graphs cannot be bound.
    """
    changes = diff(base, root)
    if not changes:
        return f"{name}, unchanged\n"
    return f"{name}, but\n{diff_text(changes)}"
