"""For each part of a graph, the nearest part through which every way from the root leads to it."""

from typing import Any

import fiddle as fdl

from fidgpt.graph.storage.walked import Walked


class Owners:
    """Who owns what: a part that only one block's insides hold belongs to that block.

    Lists and other containers own nothing. Takes n log n time at most, of which little is seen.

    Attributes:
      depth: how many owners a part has above it, by its identity.
    """

    def __init__(self, walked: Walked) -> None:
        self.depth: dict[int, int] = {}
        self._up: dict[int, int] = {}
        self._jump: dict[int, int] = {}
        self._owner: dict[int, int] = {}
        for value in reversed(walked.nodes):
            me = id(value)
            owner = self._owner.get(me)
            anchor = me
            if owner is None or isinstance(value, fdl.Buildable):
                self._enter(me, owner)
            else:
                anchor = owner
            for child in walked.held.get(me, ()):
                known = self._owner.get(id(child))
                self._owner[id(child)] = anchor if known is None else self._common(known, anchor)

    def owner(self, value: Any) -> int:
        """The identity of the part that owns another."""
        return self._owner[id(value)]

    def _enter(self, me: int, owner: int | None) -> None:
        """Adds a part to the tree of owners, with a jump to one far above it."""
        if owner is None:
            self.depth[me], self._up[me], self._jump[me] = 0, me, me
            return
        depth, far = self.depth, self._jump[owner]
        farther = self._jump[far]
        is_even = depth[owner] - depth[far] == depth[far] - depth[farther]
        self.depth[me], self._up[me] = depth[owner] + 1, owner
        self._jump[me] = farther if is_even else owner

    def _common(self, one: int, other: int) -> int:
        """The deepest part that owns both, or is one of them."""
        if one == other:
            return one
        depth, up, jump = self.depth, self._up, self._jump
        if depth[one] < depth[other]:
            one, other = other, one
        while depth[one] > depth[other]:
            one = jump[one] if depth[jump[one]] >= depth[other] else up[one]
        while one != other:
            step = jump if jump[one] != jump[other] else up
            one, other = step[one], step[other]
        return one
