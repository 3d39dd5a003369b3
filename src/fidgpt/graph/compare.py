"""Two graphs side by side: which part stands for which, and the places where they may differ."""

import enum
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.align import Pair, align
from fidgpt.graph.bound import NOTHING, Argument, Bound, Place
from fidgpt.graph.likeness import (
    Label,
    Numbers,
    call_of,
    content,
    leaf_key,
    number,
    shape,
    tags_of,
    writing,
)
from fidgpt.graph.walk import children, step_to

Tags = tuple[str, ...]
Items = dict[str, Any]  # by the step that leads to each


class Aspect(enum.Enum):
    """In what two graphs differ at an edge."""

    TAGS = enum.auto()
    POSITION = enum.auto()  # the item stands before or after others than it did
    CALL = enum.auto()  # the part that stands there calls something else
    VALUE = enum.auto()  # what stands there is another; to be asked again where it is heard


@dataclass(frozen=True, slots=True)
class Edge:
    """The same argument, or item, of the old graph and of the new one.

    Attributes:
      paths: the place in each graph; None where it has none.
      old: what the old graph holds there.
      new: what the new one holds there.
      places: the argument in each graph; None for an item of a container.
      tags: the names of its tags in each graph.
      is_moved: whether it is an item that has left its place among the others.
      like: of an item that came, the old item that it resembles.
      copy: of which copy of old parts this is a place; 0 for the pairs that all start with.
    """

    paths: tuple[str | None, str | None]
    old: Argument
    new: Argument
    places: tuple[Place, Place] | None = None
    tags: tuple[Tags, Tags] = ((), ())
    is_moved: bool = False
    like: Any = None
    copy: int = 0

    @property
    def is_heard(self) -> bool:
        return self.old.said is not None or self.new.said is not None


Finding = tuple[Aspect, Edge]


class Comparison:
    """Walks both graphs at once, from the root, and pairs their parts.

    A part is paired with the first one that it meets in its place. Where another two meet later,
    the graphs do not share the same. A new part that has no partner then, but was met by an old
    one, or resembles one, is a copy of that, and is compared with it once all pairs are made.
    Every new part is looked into once.

    Attributes:
      old: the old graph, bound.
      new: the new one.
      content: a number for each node of both graphs, the same for equal ones.
    """

    def __init__(self, old: Any, new: Any) -> None:
        self.old, self.new = Bound(old), Bound(new)
        self.content = self._numbers(content)
        self._keys = [self._numbers(label) for label in (writing, shape, _call)]
        self._became: dict[tuple[int, int], Any] = {}  # by the copy and the identity of the old
        self._was: dict[int, Any] = {}  # by the identity of the new
        self._containers: set[tuple[int, int]] = set()
        self._found: list[list[Finding]] = [[]]  # by the copy
        self._copies: dict[int, int] = {}  # which copy begins at an edge, by its identity
        self._later: deque[tuple[Edge, Any, Any]] = deque()
        self._walk(Edge(("", ""), Argument(self.old.root), Argument(self.new.root)))
        while self._later:
            self._copy(*self._later.popleft())

    def found(self) -> Iterator[Finding]:
        """The edges at which the graphs differ, and in what, in order.

        Edges at which a value is heard are all among them: whether it differs is not told where
        it is heard, but where it is said.
        """
        stack = [iter(self._found[0])]
        while stack:
            finding = next(stack[-1], None)
            if finding is None:
                stack.pop()
                continue
            yield finding
            aspect, edge = finding
            if aspect is Aspect.VALUE and self.is_copy(edge):
                stack.append(iter(self._found[self._copies[id(edge)]]))

    def is_copy(self, edge: Edge) -> bool:
        """Whether the new part at an edge was compared with one that has another partner."""
        return id(edge) in self._copies

    def partner(self, old: Any) -> Any:
        """The new part that stands for an old one; None where there is none."""
        return self._became.get((0, id(old)))

    def are_paired(self, old: Any, new: Any, *, copy: int = 0) -> bool:
        """Whether two parts stand for each other."""
        return self._was.get(id(new)) is old and self._became.get((copy, id(old))) is new

    def is_same(self, edge: Edge) -> bool:
        """Whether both graphs hold the same at an edge: paired parts, or equal values."""
        old, new = edge.old.value, edge.new.value
        if not self.old.has_parts(old) and not self.new.has_parts(new):
            return leaf_key(old) == leaf_key(new)
        is_met = (id(old), id(new)) in self._containers
        return is_met or any(self.are_paired(old, new, copy=copy) for copy in (0, edge.copy))

    def has_met(self, value: Any) -> bool:
        """Whether a part has met one of the other graph, and is neither new nor gone."""
        return id(value) in self._was or (0, id(value)) in self._became

    def _walk(self, *edges: Edge) -> None:
        stack = list(reversed(edges))
        while stack:
            stack += reversed(list(self._visit(stack.pop())))

    def _copy(self, edge: Edge, old: Any, new: Any) -> None:
        if id(new) in self._was:  # it found its partner after all
            return
        self._copies[id(edge)] = copy = len(self._found)
        self._found.append([])
        self._walk(*self._paired(old, new, copy))

    def _find(self, aspect: Aspect, edge: Edge) -> None:
        self._found[edge.copy].append((aspect, edge))

    def _visit(self, edge: Edge) -> Iterator[Edge]:
        if edge.tags[0] != edge.tags[1]:
            self._find(Aspect.TAGS, edge)
        if edge.is_moved:
            self._find(Aspect.POSITION, edge)
        old, new = edge.old.value, edge.new.value
        if edge.is_heard:
            self._find(Aspect.VALUE, edge)
        elif isinstance(old, fdl.Buildable) and isinstance(new, fdl.Buildable):
            yield from self._meet(edge, old, new)
        elif _are_alike(old, new) and (self.old.has_parts(old) or self.new.has_parts(new)):
            yield from self._open(edge, old, new)
        elif not self.is_same(edge):
            self._find(Aspect.VALUE, edge)
            if edge.like is not None:
                self._later.append((edge, edge.like, new))

    def _meet(self, edge: Edge, old: fdl.Buildable, new: fdl.Buildable) -> Iterator[Edge]:
        if self.is_same(edge):
            return
        is_first = (edge.copy, id(old)) not in self._became and id(new) not in self._was
        # A copy of a factory has factories of its own, but what is built once it would share.
        if is_first and not (edge.copy and type(old) is fdl.Config):
            if call_of(old) != call_of(new):
                self._find(Aspect.CALL, edge)
            yield from self._paired(old, new, edge.copy)
            return
        self._find(Aspect.VALUE, edge)
        self._later.append((edge, old, new))
        if not edge.copy and id(new) in self._was:
            self._became.setdefault((0, id(old)), new)

    def _paired(self, old: Any, new: Any, copy: int) -> Iterator[Edge]:
        self._became[copy, id(old)] = new
        self._was[id(new)] = old
        return self._arguments(old, new, copy)

    def _arguments(self, old: fdl.Buildable, new: fdl.Buildable, copy: int) -> Iterator[Edge]:
        olds, news = self.old.arguments(old), self.new.arguments(new)
        calls_same = fdl.get_callable(old) is fdl.get_callable(new)
        for key in {**olds, **news}:
            one, other = olds.get(key, NOTHING), news.get(key, NOTHING)
            if not calls_same and _comes_with_the_call(one, other):
                continue
            has_both = calls_same or (key in olds and key in news)
            yield Edge(
                (self.old.path_to(old, step_to(key)), self.new.path_to(new, step_to(key))),
                one,
                other,
                ((id(old), key), (id(new), key)),
                (tags_of(old, key), tags_of(new, key)) if has_both else ((), ()),
                copy=copy,
            )

    def _open(self, edge: Edge, old: Any, new: Any) -> Iterator[Edge]:
        if (id(old), id(new)) in self._containers:
            return
        self._containers.add((id(old), id(new)))
        if type(old) is not type(new):
            self._find(Aspect.CALL, edge)
        olds, news = dict(children(old)), dict(children(new))
        models = self._models([] if isinstance(old, dict) else olds.values())
        for pair in self._item_pairs(olds, news, by_key=isinstance(old, dict)):
            item = news.get(pair.new, fdl.NO_VALUE)
            yield Edge(
                (
                    None if pair.old is None else self.old.path_to(old, pair.old),
                    None if pair.new is None else self.new.path_to(new, pair.new),
                ),
                Argument(olds.get(pair.old, fdl.NO_VALUE)),
                Argument(item),
                is_moved=pair.is_moved,
                like=self._model_of(item, models) if pair.old is None else None,
                copy=edge.copy,
            )

    def _item_pairs(self, olds: Items, news: Items, *, by_key: bool) -> list[Pair[str]]:
        if by_key:
            return [Pair(step, step) for step in {**olds, **news}]
        keys = ([self._keys_of(item) for item in items.values()] for items in (olds, news))
        old_steps, new_steps = list(olds), list(news)
        return [
            Pair(
                None if pair.old is None else old_steps[pair.old],
                None if pair.new is None else new_steps[pair.new],
                pair.is_moved,
            )
            for pair in align(*keys)
        ]

    def _keys_of(self, item: Any) -> list[Hashable]:
        """What must agree for two items to be the same one, the strictest first."""
        if self.old.has_parts(item) or self.new.has_parts(item):
            return [("node", numbers[id(item)]) for numbers in self._keys]
        return [leaf_key(item)] * len(self._keys)

    def _models(self, items: Iterable[Any]) -> dict[Hashable, Any]:
        """The first item that answers to each key."""
        models: dict[Hashable, Any] = {}
        for item in items:
            if isinstance(item, fdl.Buildable):
                for level, key in enumerate(self._keys_of(item)):
                    models.setdefault((level, key), item)
        return models

    def _model_of(self, item: Any, models: dict[Hashable, Any]) -> Any:
        """The old item that a new one resembles most; None where there is none."""
        if not isinstance(item, fdl.Buildable):
            return None
        found = (models.get(key) for key in enumerate(self._keys_of(item)))
        return next((model for model in found if model is not None), None)

    def _numbers(self, label: Label) -> dict[int, int]:
        known: dict[Hashable, int] = {}
        return number(self.old, known, label) | number(self.new, known, label)


def _comes_with_the_call(old: Argument, new: Argument) -> bool:
    """Whether an argument differs only because another call has other parameters or defaults."""
    if old.is_own or new.is_own:
        return False
    return NOTHING in (old, new) or (old.said is None and new.said is None)


def _are_alike(old: Any, new: Any) -> bool:
    """Whether both are containers that can be compared item by item."""
    return (isinstance(old, dict) and isinstance(new, dict)) or (
        isinstance(old, list | tuple) and isinstance(new, list | tuple)
    )


def _call(bound: Bound, value: Any, numbers: Numbers) -> Hashable:
    return call_of(value)
