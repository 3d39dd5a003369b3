"""Comparison of two graphs, node by node, and the changes that it finds."""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph import cloning, fiddle, hints
from fidgpt.graph.binding import Binding, Inherited, Resolved
from fidgpt.graph.difference import alignment, changes
from fidgpt.graph.storage.bound import BoundGraph, value_key
from fidgpt.graph.walk import IS_NODE, IS_PART, is_shared_object, join, nodes, step_to

PlaceKey = tuple[int, str]  # the identity of a node, and the step to what it holds
_Tags = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Argument:
    """The value of one parameter of a part, or of an item.

    Attributes:
      value: a plain value, a part, or a container of them; `fdl.NO_VALUE` where there is none.
      binding: the argument from which the value is inherited, if it is.
      is_default: whether the value is the default of the parameter.
    """

    value: Any
    binding: Binding | None = None
    is_default: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the value is set in this very place."""
        return self.binding is None and not self.is_default and self.value is not fdl.NO_VALUE


_UNSET = Argument(fdl.NO_VALUE)


def arguments_of(
    graph: BoundGraph, part: fdl.Buildable, *, nodes_only: bool = False
) -> dict[fiddle.Key, Argument]:
    """Return all arguments of a part, or only those whose values are nodes."""
    known, inherited = fiddle.raw_arguments(part), graph.inherited_by(part)
    return {
        key: Argument(
            value,
            inherited.get(key),
            is_default=key not in known and key not in inherited and value is not fdl.NO_VALUE,
        )
        for key, value in graph.arguments(part).items()
        if not nodes_only or IS_NODE[type(value)]
    }


def tags_of(part: fdl.Buildable, key: fiddle.Key) -> _Tags:
    """Return the sorted names of a parameter's tags."""
    return tuple(sorted(tag.__name__ for tag in fiddle.argument_tags(part).get(key, ())))


# How two graphs differ at an edge. An item has another position if it stands before or after others
# than it did; a value that is inherited may be the same.
_Aspect = Literal["tags", "position", "call", "value"]


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """The same argument or item of a node of the old graph and of its partner in the new one.

    Attributes:
      holders: the identities of the two nodes.
      steps: the step from each; None where it has no such item.
      old: what the old graph holds there.
      new: what the new one holds there.
      tags: the names of its tags in each graph.
      is_moved: whether it is an item that has left its position among the others.
      like: for an item that was added, the old item that it resembles.
      copy: the number of the copy of old parts that this belongs to; 0 for the original pairs.
    """

    holders: tuple[int, int]
    steps: tuple[str | None, str | None]
    old: Argument
    new: Argument
    tags: tuple[_Tags, _Tags] = ((), ())
    is_moved: bool = False
    like: Any = None
    copy: int = 0

    @property
    def is_inherited(self) -> bool:
        """Whether one of the graphs inherits the value."""
        return self.old.binding is not None or self.new.binding is not None

    @property
    def is_only_inherited(self) -> bool:
        """Whether one of the graphs inherits the value and neither sets it here."""
        return self.is_inherited and not self.old.is_own and not self.new.is_own

    @property
    def places(self) -> tuple[PlaceKey | None, PlaceKey | None]:
        """The place in each graph."""
        (old, new), (was, now) = self.holders, self.steps
        return None if was is None else (old, was), None if now is None else (new, now)


_Finding = tuple[_Aspect, Edge]


class Comparison:
    """Walks both graphs at once, from the root, and pairs their parts.

    A part is paired with the first one that it meets in its place. Where either meets another one
    later, the graphs differ in what they share. A new part that is then left without a partner, but
    met an old part or resembles one, is a copy of that part and is compared with it once all pairs
    are known.

    Attributes:
      old: the old graph, bound.
      new: the new one.
    """

    def __init__(self, old: Any | BoundGraph, new: Any | BoundGraph) -> None:
        """Compare two graphs, each of which may be bound already.

        Raises:
          ConfigErrors: one of the graphs cannot be bound.
        """
        self.old = old if isinstance(old, BoundGraph) else BoundGraph(old)
        self.new = new if isinstance(new, BoundGraph) else BoundGraph(new)
        self._originals: dict[int, Any] = {}
        if any(IS_PART[type(node.value)] and self.new.knows(node.value) for node in self.old.nodes):
            found = nodes(self.new.root)  # partners are found by identity: compare with a copy
            copies = cloning.copies_of(found)
            self._originals = {id(copies[id(node.value)]): node.value for node in found}
            self.new = BoundGraph(copies[id(self.new.root)])
        self._became: dict[tuple[int, int], Any] = {}  # by the copy and the identity of the old
        self._was: dict[int, Any] = {}  # by the identity of the new
        self._copy_of: dict[int, int] = {}  # by the identity of the new
        self._item_copies: set[int] = set()  # copies in added items of lists
        self._containers: set[tuple[int, int]] = set()
        self._found: list[list[_Finding]] = [[]]  # by the copy
        self._copies: dict[int, int] = {}  # the copy that begins at an edge, by its identity
        self._later: deque[tuple[Edge, Any, Any]] = deque()
        self._reported: set[int] = set()  # parts of which a change was reported
        self._inheriting = _by_source(self.old), _by_source(self.new)
        root = Edge((0, 0), ("", ""), Argument(self.old.root), Argument(self.new.root))
        self._walk([root])
        while self._later:
            edge, one, other = self._later.popleft()
            if id(other) not in self._was:
                copy = self._copies[id(edge)] = len(self._found)
                if edge.like is not None or edge.copy in self._item_copies:
                    self._item_copies.add(copy)
                self._found.append([])
                self._walk(self._pair(one, other, copy))

    def pairs(self) -> list[tuple[Any, Any]]:
        """Return all pairs of parts of one kind; copies are not among them."""
        news = [new for (copy, _), new in self._became.items() if copy == 0]
        pairs = [(self._was[id(new)], new) for new in news]
        return [(old, new) for old, new in pairs if fiddle.kind_of(old) is fiddle.kind_of(new)]

    def predecessor(self, new: Any) -> Any:
        """Return the old part that a new one stands for; None if it was added, or is a copy."""
        old = self._was.get(id(new))
        return old if self._copy_of.get(id(new)) == 0 else None

    def original(self, new: Any) -> Any:
        """Return the old part that a new one, in an added item of a list, is a copy of, or None."""
        old = self._was.get(id(new))
        is_copy = self._copy_of.get(id(new)) in self._item_copies
        return old if is_copy and _call_of(old) == _call_of(new) else None

    def heir(self, old: Any) -> Any:
        """Return the new part that stands for an old one; None if it was removed."""
        return self._became.get((0, id(old)))

    def is_same(self, edge: Edge) -> bool:
        """Return whether both graphs hold the same at an edge: paired parts, or equal values."""
        old, new = edge.old.value, edge.new.value
        if not self.old.has_parts(old) and not self.new.has_parts(new):
            return old is new or value_key(old) == value_key(new)
        is_met = (id(old), id(new)) in self._containers
        return is_met or any(self._are_paired(old, new, copy) for copy in (0, edge.copy))

    def changed_edges(self) -> Iterator[tuple[Edge, changes.Change | None]]:
        """Yield the edges that differ, each with its change; None if it follows from another."""
        found = list(self._findings(0))
        changed = {
            place
            for aspect, edge in found
            if aspect in ("value", "call") and not edge.is_only_inherited
            for place in edge.places[bool(edge.copy) :]
        }
        self._reported.clear()
        for aspect, edge in found:
            if aspect == "value" and edge.is_inherited and self.is_same(edge):
                continue
            old, new = self._side(0, edge), self._side(1, edge)
            match aspect:
                case "tags":
                    before, now = map(set, edge.tags)
                    lost, added = tuple(sorted(before - now)), tuple(sorted(now - before))
                    yield edge, changes.TagsChanged(old, new, lost, added)
                case "position":
                    yield edge, changes.ItemMoved(old, new)
                case "call":
                    yield edge, changes.PartReplaced(old, new)
                case "value":
                    sources = [one.binding for one in (edge.old, edge.new) if one.binding]
                    follows = edge.is_only_inherited and any(
                        (id(one.node.value), step_to(one.key)) in changed for one in sources
                    )
                    yield edge, None if follows else self._value_change(edge, old, new)

    def _findings(self, copy: int) -> Iterator[_Finding]:
        """Yield the findings of a copy in order, each followed by those of a copy that it begins.

        Every edge that inherits a value is among them, whether the value differs or not.
        """
        stack = [iter(self._found[copy])]
        while stack:
            finding = next(stack[-1], None)
            if finding is None:
                stack.pop()
                continue
            yield finding
            if finding[0] == "value" and id(finding[1]) in self._copies:
                stack.append(iter(self._found[self._copies[id(finding[1])]]))

    def _are_paired(self, old: Any, new: Any, copy: int) -> bool:
        return self._was.get(id(new)) is old and self._copy_of.get(id(new)) == copy

    def _walk(self, edges: Iterator[Edge] | list[Edge]) -> None:
        stack = list(edges)[::-1]
        while stack:
            stack += list(self._visit(stack.pop()))[::-1]

    def _visit(self, edge: Edge) -> Iterator[Edge]:
        """Record how the graphs differ at an edge, and yield the edges inside."""
        if edge.tags[0] != edge.tags[1]:
            self._record("tags", edge)
        if edge.is_moved:
            self._record("position", edge)
        old, new = edge.old.value, edge.new.value
        if edge.is_inherited:
            self._record("value", edge)
        elif IS_PART[type(old)] and IS_PART[type(new)]:
            yield from self._meet(edge, old, new)
        elif (self.old.has_parts(old) or self.new.has_parts(new)) and any(
            isinstance(old, kind) and isinstance(new, kind) for kind in (dict, (list, tuple))
        ):
            yield from self._enter(edge, old, new)
        elif not self.is_same(edge):
            self._record("value", edge)
            if edge.like is not None:
                self._later.append((edge, edge.like, new))

    def _meet(self, edge: Edge, old: fdl.Buildable, new: fdl.Buildable) -> Iterator[Edge]:
        """Pair two parts that meet in a place, unless one of them has a partner."""
        if self.is_same(edge):
            return
        is_first = (edge.copy, id(old)) not in self._became and id(new) not in self._was
        would_share = edge.copy and is_shared_object(self.old.node_of[id(old)])
        if is_first and (not would_share or hints.is_quantity(old)):
            if _call_of(old) != _call_of(new):
                self._record("call", edge)
            yield from self._pair(old, new, edge.copy)
        else:
            self._record("value", edge)
            self._later.append((edge, old, new))

    def _pair(self, old: Any, new: Any, copy: int) -> Iterator[Edge]:
        """Pair two parts, and yield their arguments; of equal parts, only those that are nodes."""
        self._became[copy, id(old)] = new
        self._was[id(new)] = old
        self._copy_of[id(new)] = copy
        is_equal = self.old.content[id(old)] == self.new.content[id(new)]
        olds = arguments_of(self.old, old, nodes_only=is_equal)
        news = arguments_of(self.new, new, nodes_only=is_equal)
        calls_same = is_equal or _call_of(old)[1] == _call_of(new)[1]
        for key in {**olds, **news}:
            one, other = olds.get(key, _UNSET), news.get(key, _UNSET)
            if not calls_same and _comes_with_the_call(one, other):
                continue
            has_both = calls_same or (key in olds and key in news)
            tags = (tags_of(old, key), tags_of(new, key)) if has_both else ((), ())
            steps = step_to(key), step_to(key)
            yield Edge((id(old), id(new)), steps, one, other, tags, copy=copy)

    def _enter(self, edge: Edge, old: Any, new: Any) -> Iterator[Edge]:
        """Yield the items of two containers."""
        holders = id(old), id(new)
        if holders in self._containers:
            return
        self._containers.add(holders)
        if type(old) is not type(new):
            self._record("call", edge)
        if isinstance(old, dict):
            for key in {**old, **new}:
                values = Argument(old.get(key, fdl.NO_VALUE)), Argument(new.get(key, fdl.NO_VALUE))
                yield Edge(holders, (f"[{key!r}]", f"[{key!r}]"), *values, copy=edge.copy)
            return
        keys = (
            [self._keys(self.old, one) for one in old],
            [self._keys(self.new, one) for one in new],
        )
        models = [{}, {}, {}]
        for item, own in reversed([*zip(old, keys[0], strict=True)]):
            for level, key in enumerate(own if IS_PART[type(item)] else ()):
                models[level][key] = item
        for i, j, is_moved in alignment.align(*keys):
            steps = None if i is None else f"[{i}]", None if j is None else f"[{j}]"
            one = _UNSET if i is None else Argument(old[i])
            other = _UNSET if j is None else Argument(new[j])
            like = None
            if i is None and j is not None and IS_PART[type(new[j])]:
                found = [m[key] for m, key in zip(models, keys[1][j], strict=True) if key in m]
                like = found[0] if found else None
            yield Edge(holders, steps, one, other, ((), ()), is_moved, like, edge.copy)

    def _keys(self, graph: BoundGraph, item: Any) -> tuple[Hashable, ...]:
        """Return what identifies an item of a list: what is written, its shape, what it calls."""
        if not graph.has_parts(item):
            return (value_key(item),) * 3
        return graph.written[id(item)], graph.shape[id(item)], _call_of(item)

    def _record(self, aspect: _Aspect, edge: Edge) -> None:
        self._found[edge.copy].append((aspect, edge))

    def _side(self, which: int, edge: Edge) -> changes.Side:
        graph, argument = (self.old, self.new)[which], (edge.old, edge.new)[which]
        place, path, other = edge.places[which], None, None
        if place is not None:
            path = self._path(graph, place)
            if IS_PART[type(argument.value)]:
                paths = graph.node_of[id(argument.value)].paths[:2]
                other = paths[paths[0] == path] if len(paths) > 1 else None
        return changes.Side(
            path,
            self._originals.get(id(argument.value), argument.value),
            inherited_from=argument.binding.path if argument.binding else None,
            is_default=argument.is_default,
            shared_with=other,
        )

    def _path(self, graph: BoundGraph, place: PlaceKey) -> str:
        """Return the first path of a place."""
        node = graph.node_of.get(place[0])
        return join(node.path if node else "", place[1])

    def _value_change(self, edge: Edge, old: changes.Side, new: changes.Side) -> changes.Change:
        was, now = edge.old.value, edge.new.value
        had, has = self.old.has_parts(was), self.new.has_parts(now)
        if not had and not has:
            heirs = zip(self._inheriting, edge.places, strict=True)
            gone, found = (sources.get(place, ()) for sources, place in heirs)
            return changes.ValueChanged(old, new, tuple(one.path for one in found or gone))
        if IS_PART[type(was)] and IS_PART[type(now)]:
            is_equal = self.old.content[id(was)] == self.new.content[id(now)]
            self._report(self.old, was)
            return changes.SharingChanged(old, new, is_equal)
        if had and has:
            return changes.PartReplaced(old, new)
        if edge.like is not None and id(edge) in self._copies:
            partner = self.heir(edge.like)
            like = None if partner is None else self.new.path(partner)
            return changes.PartAdded(old, new, like=like)
        graph, part, change = (
            (self.new, now, changes.PartAdded) if has else (self.old, was, changes.PartRemoved)
        )
        lives_elsewhere = IS_PART[type(part)] and self._is_known(part)
        self._report(graph, part)
        return changes.SharingChanged(old, new) if lives_elsewhere else change(old, new)

    def _is_known(self, part: Any) -> bool:
        is_paired = id(part) in self._was or (0, id(part)) in self._became
        return is_paired or id(part) in self._reported

    def _report(self, graph: BoundGraph, value: Any) -> None:
        """Remember a part that was added or removed, with all the parts that only it holds."""
        stack = [value]
        while stack:
            value = stack.pop()
            if graph.has_parts(value) and not self._is_known(value):
                self._reported.add(id(value))
                stack += graph.held(value)


@gc_paused()
def diff(old: Any, new: Any) -> changes.Changes:
    """Return what differs between two graphs once they are bound; nothing if they are equal.

    A value that many places inherit is one change, at the place that sets it. A default and the
    same value set by hand do not differ, nor do a value inherited and the same value set. Parts are
    compared by their places, items of lists by their content. A part that two places share differs
    from two equal parts. Takes time linear in the size of the graphs.

    Args:
      old: the old graph, or the graph resolved.
      new: the new graph; or its `BoundGraph`, to compare many others with it.

    Raises:
      ConfigErrors: one of the graphs cannot be bound.
    """
    comparison = Comparison(old, new)
    before, after = (
        one.root if isinstance(one, BoundGraph | Resolved) else one for one in (old, new)
    )
    return changes.Changes(
        (one for _, one in comparison.changed_edges() if one is not None), before, after
    )


def since(base: Any, root: Any, *, name: str) -> str:
    """Return the name of the graph that another was made from, and a line for each difference.

    Raises:
      ConfigErrors: one of the graphs cannot be bound.
    """
    found = diff(base, root)
    return f"{name}, but\n{changes.diff_text(found)}" if found else f"{name}, unchanged\n"


def _by_source(graph: BoundGraph) -> dict[PlaceKey | None, list[Inherited]]:
    found: dict[PlaceKey | None, list[Inherited]] = {}
    for one in graph.inherited:
        place = id(one.binding.node.value), step_to(one.binding.key)
        found.setdefault(place, []).append(one)
    return found


def _call_of(value: Any) -> tuple[Hashable, ...]:
    """Return the kind of a part and what it calls; of a container, its type."""
    if not IS_PART[type(value)]:
        return type(value), None
    called = fdl.get_callable(value)
    return fiddle.kind_of(value), called if isinstance(called, Hashable) else id(called)


def _comes_with_the_call(old: Argument, new: Argument) -> bool:
    """Return whether an argument differs only because another call has other parameters."""
    if old.is_own or new.is_own:
        return False
    has_both = old.value is not fdl.NO_VALUE and new.value is not fdl.NO_VALUE
    return not has_both or (old.binding is None and new.binding is None)
