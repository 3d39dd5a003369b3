"""Numbers for nodes of which more must be equal than what they build, such as who said it."""

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

from fidgpt.graph.storage.merkle import Merkle, Table
from fidgpt.graph.structure.walk import IS_PART


class NotedMerkle(Merkle):
    """Numbers that are the same for nodes of one content of which a note is the same too."""

    def __init__(
        self,
        plain: Merkle,
        note: Callable[[Any], Hashable],
        kind: Callable[[Any], Hashable],
    ) -> None:
        """Numbers a graph.

        Args:
          plain: the numbers of what is equal but for the notes.
          note: what else of a part must be equal.
          kind: the same only for nodes of which content and note are the same.
        """
        super().__init__(plain.order, Table(), kind)
        self._plain = plain
        self._note = note

    def number(self, value: Any) -> int:
        """The number of a node."""
        return self._plain.number(value) if self._adds_nothing else super().number(value)

    @cached_property
    def _adds_nothing(self) -> bool:
        """Whether notes are the same wherever content is, so that sharing need not be looked at."""
        sides = (self._plain, self)
        for side in sides:
            side.content(self.order.root)  # with which there is a number for each that is different
        plain, noted = (len(set(side._content.values())) for side in sides)
        return plain == noted

    def _key(self, value: Any) -> tuple[Hashable, ...]:
        inside = tuple([self._content[id(one)] for one in self.order.held(value)])
        note = self._note(value) if IS_PART[type(value)] else None
        return self._plain.content(value), inside, note
