"""Arguments, tags, lists and dicts of bound graphs, which refuse changes; copies take changes."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from fiddle import daglish

Refuse = Callable[[Any], Exception]
"""Returns the error for an attempt to change something under a key."""


class FrozenList(list[Any]):
    """A list that refuses changes."""

    refuse: Refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class FrozenDict(dict[Any, Any]):
    """A dict that refuses changes."""

    refuse: Refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FrozenSet(set[Any]):
    """A set that refuses changes."""

    refuse: Refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return set, (list(self),)


class FrozenTags(FrozenDict):
    """The tags of a node's parameters, which refuse changes; a parameter without any has none."""

    def __init__(self, tags: Mapping[Any, Iterable[Any]], refuse: Refuse) -> None:
        super().__init__({key: self._frozen(key, own, refuse) for key, own in tags.items()})
        self.refuse = refuse

    @staticmethod
    def _frozen(key: Any, tags: Iterable[Any], refuse: Refuse) -> FrozenSet:
        frozen = FrozenSet(tags)
        frozen.refuse = lambda _: refuse(key)
        return frozen

    def __missing__(self, key: Any) -> FrozenSet:
        return self._frozen(key, (), self.refuse)

    def __reduce__(self) -> tuple[Any, ...]:
        return defaultdict, (set, dict(self))


KINDS: Mapping[type, type] = {FrozenList: list, FrozenDict: dict}
_CHANGES: Mapping[type, str] = {
    FrozenList: "__setitem__ __delitem__ __iadd__ __imul__ append clear extend insert pop remove "
    "reverse sort",
    FrozenDict: "__setitem__ __delitem__ __ior__ clear pop popitem setdefault update",
    FrozenSet: "__iand__ __ior__ __isub__ __ixor__ add clear difference_update discard "
    "intersection_update pop remove symmetric_difference_update update",
}


def _refused(self: Any, key: Any = None, *rest: object, **more: object) -> Any:
    raise self.refuse(key)


for _kind, _names in _CHANGES.items():
    for _name in _names.split():
        setattr(_kind, _name, _refused)
for _kind in KINDS:
    # Fiddle builds, and writes to files, only containers whose type it knows.
    _known: Any = daglish.find_node_traverser(KINDS[_kind])
    daglish.register_node_traverser(
        _kind,
        flatten_fn=_known.flatten,
        unflatten_fn=_known.unflatten,
        path_elements_fn=_known.path_elements,
    )


class Freezer:
    """Freezes the lists and dicts of a graph; what was one object stays one.

    Attributes:
      frozen: what stands for each container, by its identity, after the container itself.
    """

    _MAKE: ClassVar[Mapping[type, type]] = {plain: kind for kind, plain in KINDS.items()}

    def __init__(self) -> None:
        self.frozen: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any, refuse: Refuse) -> Any:
        """Return a value with all lists and dicts in it frozen, down to the nodes that it holds."""
        kind = type(value)
        if kind not in (list, dict) and not isinstance(value, tuple):
            return value
        if id(value) not in self.frozen:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            made: Any = {key: self(item, refuse) for key, item in items}
            if isinstance(value, tuple):
                is_same = all(made[i] is item for i, item in enumerate(value))
                make = getattr(kind, "_make", kind)  # named tuples have a _make
                made = value if is_same else make(made.values())
            else:
                made = self._MAKE[kind](made if kind is dict else made.values())
                made.refuse = refuse
            self.frozen[id(value)] = value, made
        return self.frozen[id(value)][1]
