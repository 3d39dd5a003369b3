"""Which part of a new graph goes on with which part of an old one, both as they are written."""

from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from fidgpt.graph.difference.align import align
from fidgpt.graph.storage.merkle import Merkle, Table, leaf_key
from fidgpt.graph.storage.order import Order


class Pairing:
    """Pairs the parts of two graphs, each with one other at most.

    Attributes:
      old: the old graph, walked.
      new: the new graph, walked.
    """

    def __init__(self, old: Any, new: Any) -> None:
        """Pairs parts from the root down, each where the two are first met.

        Raises:
          ConfigError: a graph contains itself.
        """
        self.old, self.new = Order(old, bound=False), Order(new, bound=False)
        table = Table()
        self._merkles = Merkle(self.old, table), Merkle(self.new, table)
        self._became: dict[int, Any] = {}
        self._was: dict[int, Any] = {}
        self._same: dict[tuple[int, int], bool] = {}
        self.pairs: list[tuple[Any, Any]] = []
        todo = [(old, new)]
        while todo:
            todo += [*self._meet(*todo.pop())][::-1]

    def predecessor(self, new: Any) -> Any:
        """The old part that goes on as a new one; None where it came."""
        return self._was.get(id(new))

    def heir(self, old: Any) -> Any:
        """The new part that an old one goes on as; None where it went."""
        return self._became.get(id(old))

    def is_same(self, old: Any, new: Any) -> bool:
        """Whether two places hold the same: paired parts, or equal values."""
        if isinstance(old, fdl.Buildable) or isinstance(new, fdl.Buildable):
            return isinstance(old, fdl.Buildable) and self.predecessor(new) is old
        if not isinstance(new, list | tuple | dict) or type(old) is not type(new):
            return leaf_key(old) == leaf_key(new)
        known = self._same.get((id(old), id(new)))
        if known is None:
            known = self._same[id(old), id(new)] = self._are_same(old, new)
        return known

    def _are_same(self, old: Any, new: Any) -> bool:
        if isinstance(old, dict):
            return old.keys() == new.keys() and all(self.is_same(old[key], new[key]) for key in new)
        return len(old) == len(new) and all(map(self.is_same, old, new))

    def _meet(self, old: Any, new: Any) -> Iterator[tuple[Any, Any]]:
        """Pairs two values if they can be; what to go on with."""
        if isinstance(old, fdl.Buildable) and isinstance(new, fdl.Buildable):
            if id(old) in self._became or id(new) in self._was or type(old) is not type(new):
                return
            self._became[id(old)], self._was[id(new)] = new, old
            self.pairs.append((old, new))
            olds, news = old.__arguments__, new.__arguments__
            yield from ((olds[key], value) for key, value in news.items() if key in olds)
        elif isinstance(old, dict) or isinstance(new, dict):
            if type(old) is type(new):
                yield from ((old[key], value) for key, value in new.items() if key in old)
        elif isinstance(old, list | tuple) and isinstance(new, list | tuple):
            keys = [self._keys(0, one) for one in old], [self._keys(1, one) for one in new]
            for i, j, _ in align(*keys):
                if i is not None and j is not None:
                    yield old[i], new[j]

    def _keys(self, which: int, item: Any) -> list[Any]:
        merkle = self._merkles[which]
        word = merkle.content(item) if merkle.order.knows(item) else leaf_key(item)
        call = item.__fn_or_cls__ if isinstance(item, fdl.Buildable) else type(item)
        return [word, (type(item), id(call))]
