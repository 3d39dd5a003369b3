"""The items of two containers side by side: dicts by their keys, lists by what they hold."""

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.graph.difference.align import align
from fidgpt.graph.difference.bound import Bound
from fidgpt.graph.difference.likeness import (
    Label,
    Numbers,
    call_of,
    leaf_key,
    number,
    shape,
    writing,
)
from fidgpt.graph.walk import children


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
        self._numbers = [self._number(label) for label in (writing, shape, _call)]

    def pairs(self, old: Any, new: Any) -> Iterator[ItemPair]:
        """The items of two dicts, or of two lists or tuples."""
        olds, news = dict(children(old)), dict(children(new))
        if isinstance(old, dict):
            for step in {**olds, **news}:
                values = olds.get(step, fdl.NO_VALUE), news.get(step, fdl.NO_VALUE)
                yield ItemPair((step, step), values)
            return
        old_items, new_items = list(olds.items()), list(news.items())
        old_keys = [self._keys(item) for _, item in old_items]
        new_keys = [self._keys(item) for _, item in new_items]
        models = self._models(old_items, old_keys)
        nothing = (None, fdl.NO_VALUE)
        for i, j, is_moved in align(old_keys, new_keys):
            old_step, old_item = nothing if i is None else old_items[i]
            new_step, new_item = nothing if j is None else new_items[j]
            came = i is None and isinstance(new_item, fdl.Buildable)
            like = self._most_like(new_item, models) if came else None
            yield ItemPair((old_step, new_step), (old_item, new_item), is_moved, like)

    def _keys(self, item: Any) -> list[Hashable]:
        """What must agree for two items to be the same one, the strictest first."""
        if any(side.has_parts(item) for side in self._sides):
            return [("node", numbers[id(item)]) for numbers in self._numbers]
        return [leaf_key(item)] * len(self._numbers)

    def _models(
        self, items: list[tuple[str, Any]], keys: list[list[Hashable]]
    ) -> dict[Hashable, Any]:
        """The first part that answers to each key."""
        models: dict[Hashable, Any] = {}
        for (_, item), own in zip(items, keys, strict=True):
            if isinstance(item, fdl.Buildable):
                for key in enumerate(own):
                    models.setdefault(key, item)
        return models

    def _most_like(self, item: Any, models: dict[Hashable, Any]) -> Any:
        return next((models[key] for key in enumerate(self._keys(item)) if key in models), None)

    def _number(self, label: Label) -> dict[int, int]:
        known: dict[Hashable, int] = {}
        old, new = self._sides
        return number(old, known, label) | number(new, known, label)


def are_comparable(old: Any, new: Any) -> bool:
    """Whether both are containers whose items can be paired."""
    kinds: tuple[tuple[type, ...], ...] = ((dict,), (list, tuple))
    return any(isinstance(old, kind) and isinstance(new, kind) for kind in kinds)


def _call(bound: Bound, value: Any, numbers: Numbers) -> Hashable:
    return call_of(value)
