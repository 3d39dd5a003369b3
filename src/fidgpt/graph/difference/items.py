"""The items of two containers side by side: dicts by their keys, lists by what they hold."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.graph.difference.align import Pair, align
from fidgpt.graph.difference.bound import Bound
from fidgpt.graph.difference.likeness import (
    Numbering,
    Numbers,
    call_of,
    shape,
    writing,
)
from fidgpt.graph.storage.merkle import leaf_key
from fidgpt.graph.structure.walk import children

_Item = tuple[str, Any]  # the step that leads to an item, and the item


class ItemPair(NamedTuple):
    """An item of the old container and its partner in the new one.

    Attributes:
      steps: what leads to each; None where there is none.
      values: the two; `fdl.NO_VALUE` where there is none.
      is_moved: whether it has left its place among the others.
      like: of an item that came, the old item that it resembles.
    """

    steps: tuple[str | None, str | None]
    values: tuple[Any, Any]
    is_moved: bool = False
    like: Any = None


class Items:
    """Pairs the items of containers of two graphs."""

    def __init__(self, old: Bound, new: Bound) -> None:
        self._sides = (old, new)
        self._numberings = [Numbering(label) for label in (writing, shape, _call)]

    def pairs(self, old: Any, new: Any) -> Iterator[ItemPair]:
        """The items of two dicts, or of two lists or tuples."""
        olds, news = dict(children(old)), dict(children(new))
        if isinstance(old, dict):
            for step in {**olds, **news}:
                values = olds.get(step, fdl.NO_VALUE), news.get(step, fdl.NO_VALUE)
                yield ItemPair((step, step), values)
            return
        old_items, new_items = list(olds.items()), list(news.items())
        models: dict[Hashable, Any] | None = None
        nothing = (None, fdl.NO_VALUE)
        for i, j, is_moved in self._positions(old, new):
            old_step, old_item = nothing if i is None else old_items[i]
            new_step, new_item = nothing if j is None else new_items[j]
            like = None
            if i is None and isinstance(new_item, fdl.Buildable):
                if models is None:
                    models = self._models(old_items)
                like = self._most_like(new_item, models)
            yield ItemPair((old_step, new_step), (old_item, new_item), is_moved, like)

    def _positions(self, old: Any, new: Any) -> list[Pair[int]]:
        """Pairs of positions; only items that differ where they stand are compared in full."""
        olds, news = self._words(0, old), self._words(1, new)
        start, end = _common(olds, news)
        apart: tuple[Sequence[int], Sequence[int]] = (
            range(start, len(olds) - end),
            range(start, len(news) - end),
        )
        if len(olds) == len(news):
            differ = [i for i in apart[0] if olds[i] != news[i]]
            if {olds[i] for i in differ}.isdisjoint(news[i] for i in differ):  # none has moved
                apart = differ, differ
        shift = len(olds) - len(news)
        settled = sorted({*range(len(news))}.difference(apart[1]))
        placed = [(j, Pair[int](j if j < start else j + shift, j)) for j in settled]
        old_keys = [self._keys(0, old[i]) for i in apart[0]]
        after = start - 1
        for i, j, is_moved in align(old_keys, [self._keys(1, new[j]) for j in apart[1]]):
            after = after if j is None else apart[1][j]
            one, other = (None if i is None else apart[0][i]), (None if j is None else after)
            placed.append((after, Pair(one, other, is_moved)))
        placed.sort(key=lambda place: place[0])
        return [pair for _, pair in placed]

    def _words(self, which: int, container: Any) -> list[Hashable]:
        bound = self._sides[which]
        return [
            bound.merkle.number(one) if bound.knows(one) else leaf_key(one) for one in container
        ]

    def _keys(self, which: int, item: Any) -> list[Hashable]:
        """What must agree for two items to be the same one, the strictest first."""
        bound = self._sides[which]
        if bound.has_parts(item):
            return [("node", numbering.of(bound, item)) for numbering in self._numberings]
        return [leaf_key(item)] * len(self._numberings)

    def _models(self, items: list[_Item]) -> dict[Hashable, Any]:
        """The first old part that answers to each key."""
        models: dict[Hashable, Any] = {}
        for _, item in items:
            if isinstance(item, fdl.Buildable):
                for key in enumerate(self._keys(0, item)):
                    models.setdefault(key, item)
        return models

    def _most_like(self, item: Any, models: dict[Hashable, Any]) -> Any:
        keys = enumerate(self._keys(1, item))
        return next((models[key] for key in keys if key in models), None)


def _common(old: list[Hashable], new: list[Hashable]) -> tuple[int, int]:
    """How many words two lists have in common at their start, and how many at their end."""
    shorter = min(len(old), len(new))
    start = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    room = shorter - start
    return start, next((i for i in range(room) if old[-1 - i] != new[-1 - i]), room)


def are_comparable(old: Any, new: Any) -> bool:
    """Whether both are containers whose items can be paired."""
    kinds: tuple[tuple[type, ...], ...] = ((dict,), (list, tuple))
    return any(isinstance(old, kind) and isinstance(new, kind) for kind in kinds)


def _call(bound: Bound, value: Any, numbers: Numbers) -> Hashable:
    return call_of(value)
