"""The items of two containers side by side: dicts by their keys, lists by what they hold."""

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.graph.difference.align import Pair, align
from fidgpt.graph.difference.bound import Bound
from fidgpt.graph.difference.likeness import Numbering, call_of, shape
from fidgpt.graph.storage.merkle import Table, leaf_key
from fidgpt.graph.structure.walk import IS_PART

_Models = dict[int, dict[Hashable, Any]]  # by the level of a key


class ItemPair(NamedTuple):
    """An item of the old container and its partner in the new one.

    Attributes:
      keys: the key or position of each; None where there is none.
      values: the two; `fdl.NO_VALUE` where there is none.
      is_moved: whether it has left its place among the others.
      like: of an item that came, the old item that it resembles.
    """

    keys: tuple[Any, Any]
    values: tuple[Any, Any]
    is_moved: bool = False
    like: Any = None

    @property
    def steps(self) -> tuple[str | None, str | None]:
        """What leads to each; None where there is none."""
        old, new = (None if key is None else f"[{key!r}]" for key in self.keys)
        return old, new


class Items:
    """Pairs the items of containers of two graphs."""

    def __init__(self, old: Bound, new: Bound) -> None:
        self._sides = (old, new)
        self._shapes = Numbering(shape)
        table = Table()
        self._written = old.as_written(table), new.as_written(table)

    def pairs(self, old: Any, new: Any) -> Iterator[ItemPair]:
        """The items of two dicts, or of two lists or tuples."""
        if isinstance(old, dict):
            for key in {**old, **new}:
                values = old.get(key, fdl.NO_VALUE), new.get(key, fdl.NO_VALUE)
                yield ItemPair((key, key), values)
            return
        models: _Models = {}
        for i, j, is_moved in self._positions(old, new):
            old_item = fdl.NO_VALUE if i is None else old[i]
            new_item = fdl.NO_VALUE if j is None else new[j]
            like = self._most_like(new_item, old, models) if i is None else None
            yield ItemPair((i, j), (old_item, new_item), is_moved, like)

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

    def _key(self, which: int, item: Any, level: int) -> Hashable:
        """What must agree for two items to be the same one; the strictest level is 0."""
        bound = self._sides[which]
        if not bound.has_parts(item):
            return leaf_key(item)
        if level == 0:
            return "node", self._written[which].content(item)
        return "node", self._shapes.of(bound, item) if level == 1 else call_of(item)

    def _keys(self, which: int, item: Any) -> Sequence[Hashable]:
        return _Keys(functools.partial(self._key, which, item))

    def _most_like(self, item: Any, olds: Any, models: _Models) -> Any:
        """The first old part that agrees with an item that came, in as strict a key as can be."""
        if not isinstance(item, fdl.Buildable):
            return None
        for level, key in enumerate(self._keys(1, item)):
            if level not in models:
                known = [(self._key(0, one, level), one) for one in olds if IS_PART[type(one)]]
                models[level] = dict(reversed(known))
            if key in models[level]:
                return models[level][key]
        return None


class _Keys(Sequence[Hashable]):
    """The keys of an item, each made when it is asked for."""

    def __init__(self, make: Callable[[int], Hashable]) -> None:
        self._make = make

    def __len__(self) -> int:
        return 3

    def __getitem__(self, level: Any) -> Any:
        if not -3 <= level < 3:
            raise IndexError(level)
        return self._make(level % 3)


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
