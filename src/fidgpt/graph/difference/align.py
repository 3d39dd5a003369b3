"""Alignment of the items of two lists."""

import bisect
import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import fiddle as fdl

from fidgpt.graph.binding import Binding, Inherited, sayings
from fidgpt.graph.fiddle import Key
from fidgpt.graph.storage.hashing import Merkle, Table, WrittenMerkle, hashable, leaf_key
from fidgpt.graph.storage.order import Order
from fidgpt.graph.walk import IS_PART, Node, children, is_shared_object, join, step_to

ParameterRef = tuple[int, str]  # the identity of a part or container, and the step to what it holds


@dataclass(frozen=True, slots=True)
class Argument:
    """What a part gets for one parameter.

    Attributes:
      value: a plain value, a part, or a container of them; `fdl.NO_VALUE` where there is none.
      said: the place from which the value is heard; None where it stands in the part itself.
      is_default: whether nobody said anything, and the default stands.
    """

    value: Any
    said: Binding | None = None
    is_default: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the value was set in this very place."""
        return self.said is None and not self.is_default and self.value is not fdl.NO_VALUE


NOTHING = Argument(fdl.NO_VALUE)
_NOTHING: Mapping[int, Any] = {}


def place_of(said: Binding) -> ParameterRef:
    """The place that says a quantity."""
    return id(said.node.value), step_to(said.key)


class Bound:
    """A graph, bound in the mind: the graph itself is not touched.

    Attributes:
      root: the graph.
      table: gives the numbers of its nodes.
      merkle: these numbers, which are the same for what builds the same.
      paths: the first path of each node, by the identity of its value.
    """

    def __init__(
        self, root: Any, table: Table | None = None, originals: Mapping[int, Any] = _NOTHING
    ) -> None:
        """Reads a graph.

        Args:
          root: the graph.
          table: gives the numbers, the same for graphs that are to be compared.
          originals: where `root` is a copy, the nodes that are meant by the identity of theirs.

        Raises:
          ConfigErrors: the graph cannot be bound.
        """
        self.root = root
        self.table = table or Table()
        self._order = Order(root)
        self.merkle = Merkle(self._order, self.table)
        self.paths = _Paths(self._order)
        self._originals = originals

    def original(self, value: Any) -> Any:
        """The node of the graph that is meant; a plain value itself."""
        return self._originals.get(id(value), value)

    def overlaps(self, other: "Bound") -> bool:
        """Whether a part is in both graphs."""
        return self._order.overlaps(other._order)

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """Its nodes, parents first, with all places that hold each, those that hear it last."""
        return self._order.as_nodes()

    @functools.cached_property
    def node_of(self) -> Mapping[int, Node]:
        """Each node by the identity of its value."""
        return {id(node.value): node for node in self.nodes}

    def is_shared_object(self, part: Any) -> bool:
        """Whether several places hold the one object that a part builds, or all calls of one."""
        return is_shared_object(self._order.as_node(part))

    def knows(self, value: Any) -> bool:
        """Whether a value is a node of this graph."""
        return self._order.knows(value)

    def as_written(self, table: Table) -> Merkle:
        """Numbers for its nodes that are the same for what is written alike, whatever it hears."""
        return WrittenMerkle(self._order, table, self.kind)

    def kind(self, value: Any) -> Hashable:
        """The same only for nodes that are written alike and hear alike."""
        return id(value) if self._order.has_more_nodes else self._order.kind_as_written(value)

    def arguments(self, part: fdl.Buildable) -> dict[Key, Argument]:
        """All arguments of a part."""
        known, heard = part.__arguments__, self._order.heard_by(part)
        return {
            key: Argument(
                value,
                heard.get(key),
                is_default=key not in known and key not in heard and value is not fdl.NO_VALUE,
            )
            for key, value in self._order.arguments(part).items()
        }

    def held(self, value: Any) -> Sequence[Any]:
        """The nodes that a node holds, those that it hears included."""
        return self._order.held(value)

    def has_parts(self, value: Any) -> bool:
        """Whether a value is a part or a container that holds one."""
        return IS_PART[type(value)] or id(value) in self._holders

    def hearers(self, place: ParameterRef) -> tuple[str, ...]:
        """The paths of the parameters that hear a place."""
        holder, step = place
        at = self._order.lead.get(holder)
        if at is None or step not in map(step_to, sayings(at[0])):
            return ()
        return tuple(one.path for one in self._heard.get(place, ()))

    def path_of(self, place: ParameterRef) -> str:
        """The path of a place, through the first place that holds the node; "" for the root."""
        holder, step = place
        return join(self.paths.get(holder, ""), step)

    def other_place(self, value: Any, path: str) -> str | None:
        """A place other than `path` that holds a part; None where there is none."""
        if not isinstance(value, fdl.Buildable) or not self.knows(value):
            return None
        places = [
            self._order.place(holder, key) for _, holder, key in self._order.places(value)[:2]
        ]
        if len(places) < 2:
            return None
        return places[places[0] == path]

    @functools.cached_property
    def _heard(self) -> Mapping[ParameterRef, list[Inherited]]:
        found: dict[ParameterRef, list[Inherited]] = {}
        for one in self._order.heard:
            found.setdefault(place_of(one.said), []).append(one)
        return found

    @functools.cached_property
    def _holders(self) -> set[int]:
        """The containers that hold parts, however deep."""
        found: set[int] = set()
        for value in self._order.nodes:
            if not IS_PART[type(value)]:
                held = self.held(value)
                if any(IS_PART[type(one)] or id(one) in found for one in held):
                    found.add(id(value))
        return found


class _Paths(Mapping[int, str]):
    """The paths of nodes by identity, made when they are asked for."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def __getitem__(self, me: int) -> str:
        return self._order.path(self._order.lead[me][0])

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.lead)

    def __len__(self) -> int:
        return len(self._order.lead)


T = TypeVar("T")


class Pair(NamedTuple, Generic[T]):
    """Two items that stand for each other; None where an item has no partner."""

    old: T | None
    new: T | None
    is_moved: bool = False


Keys = Sequence[Sequence[Hashable]]


def align(old: Keys, new: Keys) -> list[Pair[int]]:
    """Pairs of positions, by the new position; what is gone comes after what stood before it.

    Each item has keys, the strictest first: items that agree in their first key are paired first,
    keeping the order of both lists; between these, items that agree in the next key; and so on.
    What is left in a gap is paired by position if the gap is as long in both lists. Items that are
    left over and agree in their first key have moved, and are paired too.

    Lists of one length whose items agree in their last key are paired by position altogether,
    where that takes no more changes: of many equal items, one that differs from the rest has not
    come anew because another one like it is elsewhere.
    """
    aligned = _aligned(old, new)
    if len(old) != len(new) or any(a[-1] != b[-1] for a, b in zip(old, new, strict=True)):
        return aligned
    by_position = [Pair[int](i, i) for i in range(len(old))]
    return min(by_position, aligned, key=lambda pairs: _num_changes(pairs, old, new))


def _num_changes(pairs: Sequence[Pair[int]], old: Keys, new: Keys) -> int:
    return sum(
        pair.old is None
        or pair.new is None
        or pair.is_moved
        or old[pair.old][0] != new[pair.new][0]
        for pair in pairs
    )


def _aligned(old: Keys, new: Keys) -> list[Pair[int]]:
    levels = len(old[0]) if old else 0
    kept = dict(_pairs(list(enumerate(old)), list(enumerate(new)), level=0, levels=levels))
    taken = set(kept.values())
    old_rest = [i for i in range(len(old)) if i not in kept]
    moved = _moved(old, new, old_rest, [j for j in range(len(new)) if j not in taken])
    partners = {j: i for i, j in (kept | moved).items()}
    placed = [(j, Pair(partners.get(j), j, partners.get(j) in moved)) for j in range(len(new))]
    after = -1
    for i in range(len(old)):
        after = kept.get(i, after)
        if i not in kept and i not in moved:
            placed.append((after, Pair(i, None)))
    return [pair for _, pair in sorted(placed, key=lambda place: place[0])]


def _pairs(
    old: list[tuple[int, Sequence[Hashable]]],
    new: list[tuple[int, Sequence[Hashable]]],
    *,
    level: int,
    levels: int,
) -> list[tuple[int, int]]:
    if not old or not new:
        return []
    if level == levels:
        same_length = len(old) == len(new)
        return [(i, j) for (i, _), (j, _) in zip(old, new, strict=True)] if same_length else []
    found: list[tuple[int, int]] = []
    i, j = 0, 0
    anchors = _anchors([keys[level] for _, keys in old], [keys[level] for _, keys in new])
    for a, b in [*anchors, (len(old), len(new))]:
        found += _pairs(old[i:a], new[j:b], level=level + 1, levels=levels)
        found += [(old[a][0], new[b][0])] if a < len(old) else []
        i, j = a + 1, b + 1
    return found


def _anchors(old: list[Hashable], new: list[Hashable]) -> list[tuple[int, int]]:
    """Positions of equal keys, rising in both lists: the common start, the common end, between."""
    shorter = min(len(old), len(new))
    start = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    room = shorter - start
    end = next((i for i in range(room) if old[-1 - i] != new[-1 - i]), room)
    middle = _rising(old[start : len(old) - end], new[start : len(new) - end])
    return [
        *((i, i) for i in range(start)),
        *((start + i, start + j) for i, j in middle),
        *((len(old) - i, len(new) - i) for i in range(end, 0, -1)),
    ]


def _rising(old: list[Hashable], new: list[Hashable]) -> list[tuple[int, int]]:
    """The longest run of equal keys that rises in both, the n-th of a key standing for the n-th."""
    where = {key: j for j, key in enumerate(_numbered(new))}
    common = [(i, where[key]) for i, key in enumerate(_numbered(old)) if key in where]
    ends: list[int] = []  # the lowest end of a run of each length
    best: list[int] = []  # which pair that is
    before: list[int | None] = []
    for index, (_, j) in enumerate(common):
        length = bisect.bisect_left(ends, j)
        before.append(best[length - 1] if length else None)
        ends[length : length + 1] = [j]
        best[length : length + 1] = [index]
    run: list[tuple[int, int]] = []
    index = best[-1] if best else None
    while index is not None:
        run.append(common[index])
        index = before[index]
    return run[::-1]


def _numbered(keys: list[Hashable]) -> list[Hashable]:
    seen: Counter[Hashable] = Counter()
    numbered: list[Hashable] = []
    for key in keys:
        numbered.append((key, seen[key]))
        seen[key] += 1
    return numbered


def _moved(old: Keys, new: Keys, old_rest: list[int], new_rest: list[int]) -> dict[int, int]:
    waiting: dict[Hashable, list[int]] = {}
    for i in reversed(old_rest):
        waiting.setdefault(old[i][0], []).append(i)
    return {waiting[new[j][0]].pop(): j for j in new_rest if waiting.get(new[j][0])}


Numbers = Mapping[int, int]  # by the identity of a node's value
Label = Callable[[Bound, Any, Numbers], Hashable]


def number(bound: Bound, known: dict[Hashable, int], label: Label) -> dict[int, int]:
    """A number for every node: two nodes have the same one if their labels are equal.

    Labels are made children first, from the numbers of the children, and compared exactly, so
    that all of it is linear in the graph. `known` makes the numbers of several graphs comparable.
    """
    numbers: dict[int, int] = {}
    for node in reversed(bound.nodes):
        word = label(bound, node.value, numbers)
        numbers[id(node.value)] = known.setdefault(word, len(known))
    return numbers


class Numbering:
    """Numbers for nodes of several graphs by one label, made when they are asked for.

    The label goes by what nodes hold and hear: of many of one kind only the first is looked into.
    """

    def __init__(self, label: Label) -> None:
        self._label = label
        self._known: dict[Hashable, int] = {}
        self._numbers: dict[int, int] = {}
        self._of_kind: dict[Hashable, int] = {}

    def of(self, bound: Bound, value: Any) -> int:
        """The number of a node, after those of all that it holds."""
        numbers, of_kind = self._numbers, self._of_kind
        stack = [] if id(value) in numbers else [value]
        while stack:
            one = stack[-1]
            kind = bound.kind(one)
            if kind not in of_kind:
                missing = [held for held in bound.held(one) if id(held) not in numbers]
                if missing:
                    stack += missing
                    continue
                label = self._label(bound, one, numbers)
                of_kind[kind] = self._known.setdefault(label, len(self._known))
            numbers[id(one)] = of_kind[kind]
            stack.pop()
        return numbers[id(value)]


def content(bound: Bound, value: Any, numbers: Numbers) -> Hashable:
    """Alike are parts that build equal things: calls, values and tags, whoever said them."""

    def key_of(held: Any) -> Hashable:
        return ("node", numbers[id(held)]) if bound.has_parts(held) else leaf_key(held)

    if not isinstance(value, fdl.Buildable):
        items = [(step, key_of(child)) for step, child in children(value)]
        return call_of(value), frozenset(items) if isinstance(value, dict) else tuple(items)
    return call_of(value), tuple(
        (key, tags_of(value, key), key_of(argument.value))
        for key, argument in bound.arguments(value).items()
    )


def shape(bound: Bound, value: Any, numbers: Numbers) -> Hashable:
    """Alike are parts that call the same, and hold parts that do so."""
    held = [child for child in bound.held(value) if bound.has_parts(child)]
    return call_of(value), tuple(numbers[id(child)] for child in held)


def call_of(value: Any) -> Hashable:
    """What a part calls and in which way; of a container, its type."""
    return (type(value), function_of(value)) if isinstance(value, fdl.Buildable) else type(value)


def function_of(part: fdl.Buildable) -> Hashable:
    """What a part calls, for comparing."""
    return hashable(fdl.get_callable(part))


def tags_of(part: fdl.Buildable, key: str | int) -> tuple[str, ...]:
    """The names of a parameter's tags, in a fixed order."""
    own = part.__argument_tags__.get(key)
    return tuple(sorted(tag.__name__ for tag in own)) if own else ()


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
