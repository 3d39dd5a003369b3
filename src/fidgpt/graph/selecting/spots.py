"""Spots: what a selection meets on its way through a graph, each with the way that led there."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.selecting.place import Place
from fidgpt.graph.signatures.hints import element_hint, hint_of
from fidgpt.graph.structure.arguments import Key, given
from fidgpt.graph.structure.walk import is_node, step_to


@dataclass(eq=False, slots=True)
class Spot:
    """A value and where it was met; paths and annotations are worked out when asked for.

    Attributes:
      value: the value, or `fdl.NO_VALUE` of a parameter that is not set.
      above: the spot that holds it; None for where the way begins.
      key: its place in what holds it.
      origin: the place where the way begins; None where that is the root, and past the beginning.
    """

    value: Any
    above: "Spot | None" = None
    key: Key = ""
    origin: Place | None = None
    _hint: Any = fdl.NO_VALUE
    _path: str | None = None

    @property
    def path(self) -> str:
        """The path that led here."""
        if self._path is None:
            self._path = "".join(map(_step, self._way())).removeprefix(".")
        return self._path

    @property
    def hint(self) -> Any:
        """What the annotation asks here."""
        unknown: list[Spot] = []
        spot: Spot | None = self
        while spot is not None and spot._hint is fdl.NO_VALUE:
            unknown.append(spot)
            spot = None if spot._is_argument() else spot.above
        for one in reversed(unknown):
            one._hint = one._own_hint()
        return self._hint

    @property
    def place(self) -> Place | None:
        """The place of the value; None for the root, which has none."""
        if isinstance(self.value, TaggedValueCls) and self.above is not None:
            inner = Spot(given(self.value).get("value", fdl.NO_VALUE), self, "value")
            return inner.place
        if self.above is None:
            return self.origin
        holder = self.above.path
        path = (holder + _step(self)).removeprefix(".")
        return Place(self.above.value, self.key, self.hint, path, holder, self._within())

    def _within(self) -> tuple[fdl.Buildable, Key, str] | None:
        steps, spot = "", self
        while spot.above is not None:
            if isinstance(spot.above.value, fdl.Buildable):
                return (spot.above.value, spot.key, steps) if steps else None
            steps = f"[{spot.key!r}]{steps}"
            spot = spot.above
        if not steps or spot.origin is None:
            return None
        if spot.origin.within is None:
            return (spot.origin.container, spot.origin.key, steps)
        part, key, before = spot.origin.within
        return part, key, before + steps

    def _is_argument(self) -> bool:
        """Whether a part holds the value, so that only the part knows what is asked."""
        above = self.above.value if self.above else None
        return isinstance(above, fdl.Buildable) and not isinstance(above, TaggedValueCls)

    def _own_hint(self) -> Any:
        if self.above is None:
            return self.origin.hint if self.origin else Any
        if self._is_argument():
            return hint_of(self.above.value, self.key)
        if isinstance(self.above.value, TaggedValueCls):
            return self.above._hint
        return element_hint(self.above._hint, self.key)

    def _way(self) -> list["Spot"]:
        way: list[Spot] = [self]
        spot: Spot = self
        while spot.above is not None:
            spot = spot.above
            way.append(spot)
        return way[::-1]


def entries(value: Any) -> Iterable[tuple[Key, Any]]:
    """What a node holds, by key."""
    if isinstance(value, fdl.Buildable):
        return given(value).items()
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def inside(spot: Spot) -> list[Spot]:
    """The spots directly below one."""
    return [Spot(value, spot, key) for key, value in entries(spot.value)]


def below(spots: Iterable[Spot]) -> Iterator[Spot]:
    """Every part, list, tuple and dict at or below some spots once, in reading order."""
    met: set[int] = set()
    left = list(spots)[::-1]
    while left:
        spot = left.pop()
        if is_node(spot.value) and id(spot.value) not in met:
            met.add(id(spot.value))
            yield spot
            left += inside(spot)[::-1]


def _step(spot: Spot) -> str:
    if spot.above is None:
        return spot.origin.path if spot.origin else ""
    if isinstance(spot.above.value, TaggedValueCls):  # a quantity in a list
        return ""
    return step_to(spot.key) if isinstance(spot.above.value, fdl.Buildable) else f"[{spot.key!r}]"
