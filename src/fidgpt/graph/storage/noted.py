"""Numbers for nodes of which more, or less, must be equal than what they build."""

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

import fiddle as fdl

from fidgpt.graph.storage.merkle import Merkle, Table
from fidgpt.graph.structure.arguments import Key
from fidgpt.graph.structure.walk import IS_PART


class NotedMerkle(Merkle):
    """Numbers that are the same for nodes of one content of which a note is the same too."""

    def __init__(
        self,
        plain: Merkle,
        note: Callable[[Any], Hashable],
    ) -> None:
        """Numbers a graph.

        Args:
          plain: the numbers of what is equal but for the notes; nodes of one of its kinds have the
            same note.
          note: what else of a part must be equal.
        """
        super().__init__(plain.order, Table(), plain.kind)
        self._plain = plain
        self._note = note

    def number(self, value: Any) -> int:
        """The number of a node."""
        return self._plain.number(value) if self._adds_nothing else super().number(value)

    @cached_property
    def _adds_nothing(self) -> bool:
        """Whether notes are the same wherever content is, so that sharing need not be looked at.

        Content is the same for nodes of one note, as notes are for nodes of one kind.
        """
        plain, noted = self._plain.num_different, self._plain.num_kinds
        return plain == noted or plain == self.num_different

    def _key(self, value: Any) -> tuple[Hashable, ...]:
        inside = tuple([self._content[id(one)] for one in self.order.held(value)])
        note = self._note(value) if IS_PART[type(value)] else None
        return self._plain.content(value), inside, note


class WrittenMerkle(Merkle):
    """Numbers that are the same for nodes that are written alike, whatever they hear."""

    def _arguments(self, part: Any) -> dict[Key, Any]:
        return super()._arguments(part) | dict.fromkeys(self.order.heard_by(part), fdl.NO_VALUE)
