"""Checking many graphs that resemble each other: what was right in one is not looked into again."""

from collections.abc import Iterable, Iterator
from typing import Any

import fiddle as fdl

from fidgpt.graph.checking.check import mistakes_of
from fidgpt.graph.checking.constraints import Constraint, broken, broken_of_whole
from fidgpt.graph.storage.merkle import Merkle
from fidgpt.graph.structure.walk import Node, nodes


class Resembling:
    """Remembers which parts of graphs were found right, by the numbers that a table gives them.

    Args:
      constraints: functions that look at a whole bound graph and raise ValueError.
    """

    def __init__(self, constraints: Iterable[Constraint] = ()) -> None:
        self._constraints = tuple(constraints)
        self._right: set[int] = set()

    def is_right(self, bound: Any, merkle: Merkle) -> bool:
        """Whether `checked` finds nothing wrong with a graph; it says what, where it does.

        Args:
          bound: the graph, bound.
          merkle: its numbers; those of all graphs come from one table.
        """
        found = nodes(bound)
        new = list(self._new(found, merkle))
        is_wrong = any(mistakes_of(new, within=found)) or any(broken(new))
        if is_wrong or any(broken_of_whole(bound, self._constraints)):
            return False
        self._right.update(merkle.content(node.value) for node in new)
        return True

    def _new(self, found: list[Node], merkle: Merkle) -> Iterator[Node]:
        """The nodes of which no equal was right, and the factories that these call."""
        new: set[int] = set()
        for node in found:
            is_new = merkle.content(node.value) not in self._right
            if not is_new and not isinstance(node.value, fdl.Config):
                is_new = any(id(holder.value) in new for holder, _ in node.parents)
            if is_new:
                new.add(id(node.value))
                yield node
