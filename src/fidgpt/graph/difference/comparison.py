"""Comparison of two graphs in one walk, and the changes that it finds."""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any, Literal

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph import fiddle, formulas, hints, walk
from fidgpt.graph.binding import Resolved
from fidgpt.graph.bound import Argument, BoundGraph
from fidgpt.graph.codec import is_same, value_key
from fidgpt.graph.difference import changes
from fidgpt.graph.outlines import leaf_text

PlaceKey = tuple[int, str]  # the identity of a node, and the step to what it holds
Keys = Sequence[Sequence[Hashable]]  # of each item, the strictest key first
Pair = tuple[int | None, int | None]  # positions, None without a partner
# How two graphs differ at an edge; a value that is inherited may be the same.
_Finding = tuple[Literal["tags", "call", "value"], "Edge"]


@dataclass(slots=True, eq=False)
class _Pass:
    """A walk through both graphs, or through a new part and the old one that it is a copy of.

    Attributes:
      is_item: whether it is of an added item of a list.
      became: the pairs of old and new parts, by the identity of the old.
      findings: how the graphs differ, in reading order.
    """

    is_item: bool = False
    became: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    findings: list[_Finding] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Edge:
    """The same argument or item of a node of the old graph and of its partner in the new one.

    Attributes:
      holders: the two nodes; None for the roots.
      steps: the step from each; None where it has no such item.
      old: what the old graph holds there.
      new: what the new one holds there.
      at: the walk that reached it.
      lost: the names of the tags that it lost.
      added: the names of those that it got.
      like: for an item that was added, the old item that it resembles.
      copy: the walk that compares a new part here with the old one that it is a copy of.
      is_in_formula: whether it is inside of a formula, which is a value as its text has it.
    """

    holders: tuple[Any, Any]
    steps: tuple[str | None, str | None]
    old: Argument
    new: Argument
    at: _Pass
    lost: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    like: Any = None
    copy: _Pass | None = None
    is_in_formula: bool = False

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
        return None if was is None else (id(old), was), None if now is None else (id(new), now)


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
        both = self.old.node_of.keys() & self.new.node_of.keys()
        if any(walk.IS_PART[type(self.new.node_of[me].value)] for me in both):
            # Partners are found by identity: compare with a copy.
            new_nodes = walk.nodes(self.new.root)
            copies = walk.copies_of(new_nodes)
            self._originals = {id(copies[id(node.value)]): node.value for node in new_nodes}
            self.new = BoundGraph(copies[id(self.new.root)])
        self._was: dict[int, tuple[Any, _Pass]] = {}  # the old partner, by the identity of the new
        self._containers: set[tuple[int, int]] = set()
        self._later: deque[tuple[Edge, Any, Any]] = deque()
        self._reported: set[int] = set()  # parts with a reported change
        self._inside: list[changes.Change] = []  # of the part that was reported last
        self._all = _Pass()
        one, other = Argument(self.old.root), Argument(self.new.root)
        self._walk([Edge((None, None), ("", ""), one, other, self._all)])
        while self._later:
            edge, one, other = self._later.popleft()
            if id(other) not in self._was:
                edge.copy = _Pass(edge.like is not None or edge.at.is_item)
                self._walk(self._pair(one, other, edge.copy))

    def pairs(self) -> list[tuple[Any, Any]]:
        """Return all pairs of parts of one kind; copies are not among them."""
        pairs = self._all.became.values()
        return [(old, new) for old, new in pairs if fiddle.kind_of(old) is fiddle.kind_of(new)]

    def predecessor(self, new: Any) -> Any:
        """Return the old part that a new one stands for; None if it was added, or is a copy."""
        old, at = self._was.get(id(new), (None, None))
        return old if at is self._all else None

    def original(self, new: Any) -> Any:
        """Return the old part that a new one, in an added item of a list, is a copy of, or None."""
        old, at = self._was.get(id(new), (None, None))
        return old if at and at.is_item and _call_of(old) == _call_of(new) else None

    def successor(self, old: Any) -> Any:
        """Return the new part that stands for an old one; None if it was removed."""
        return self._all.became.get(id(old), (None, None))[1]

    def is_same(self, edge: Edge) -> bool:
        """Return whether both graphs hold the same at an edge: paired parts, or equal values."""
        old, new = edge.old.value, edge.new.value
        if not self.old.has_parts(old) and not self.new.has_parts(new):
            return is_same(old, new)
        was, at = self._was.get(id(new), (None, None))
        is_paired = was is old and (at is self._all or at is edge.at)
        return is_paired or (id(old), id(new)) in self._containers

    def differences(self) -> Iterator[changes.Change]:
        """Yield how the graphs differ, without what follows from other changes."""
        ordered = list(_in_order(self._all.findings))
        changed = {
            place
            for aspect, edge in ordered
            if aspect in ("value", "call") and not edge.is_only_inherited
            for place in edge.places[edge.at is not self._all :]
        }
        self._reported.clear()
        for aspect, edge in ordered:
            if aspect == "value" and edge.is_inherited and self.is_same(edge):
                continue
            if edge.is_in_formula:
                continue
            old, new = self._side(0, edge), self._side(1, edge)
            match aspect:
                case "tags":
                    yield changes.TagsChanged(old, new, edge.lost, edge.added)
                case "call":
                    yield changes.PartReplaced(old, new)
                case "value":
                    sources = [arg.binding for arg in (edge.old, edge.new) if arg.binding]
                    follows = edge.is_only_inherited and any(
                        (id(one.node.value), walk.step_to(one.key)) in changed for one in sources
                    )
                    if not follows:
                        yield self._value_change(edge, old, new)
                    inside, self._inside = self._inside, []
                    yield from inside

    def _walk(self, edges: Iterable[Edge]) -> None:
        stack = list(edges)[::-1]
        while stack:
            edge = stack.pop()
            inside = list(self._visit(edge))
            if edge.is_in_formula or formulas.is_formula(edge.new.value):
                for change in inside:
                    change.is_in_formula = True
            stack += inside[::-1]

    def _visit(self, edge: Edge) -> Iterator[Edge]:
        """Record how the graphs differ at an edge, and yield the edges inside."""
        findings, old, new = edge.at.findings, edge.old.value, edge.new.value
        if edge.lost or edge.added:
            findings.append(("tags", edge))
        if edge.is_inherited:
            findings.append(("value", edge))
        elif walk.IS_PART[type(old)] and walk.IS_PART[type(new)]:
            yield from self._meet(edge, old, new)
        elif (self.old.has_parts(old) or self.new.has_parts(new)) and any(
            isinstance(old, kind) and isinstance(new, kind) for kind in (dict, (list, tuple))
        ):
            yield from self._enter(edge, old, new)
        elif not self.is_same(edge):
            findings.append(("value", edge))
            if edge.like is not None:
                self._later.append((edge, edge.like, new))

    def _meet(self, edge: Edge, old: fdl.Buildable, new: fdl.Buildable) -> Iterator[Edge]:
        """Pair two parts that meet in a place, unless one of them has a partner."""
        if self.is_same(edge):
            return
        is_first = id(old) not in edge.at.became and id(new) not in self._was
        would_share = edge.at is not self._all and walk.is_shared_object(self.old.node_of[id(old)])
        if _differ_by_formula(old, new):
            edge.at.findings.append(("value", edge))
        elif is_first and (not would_share or hints.is_quantity(old)):
            if _call_of(old) != _call_of(new):
                edge.at.findings.append(("call", edge))
            yield from self._pair(old, new, edge.at)
        else:
            edge.at.findings.append(("value", edge))
            self._later.append((edge, old, new))

    def _pair(self, old: Any, new: Any, at: _Pass) -> Iterator[Edge]:
        """Pair two parts, and yield those arguments that are nodes or differ."""
        at.became[id(old)] = old, new
        self._was[id(new)] = old, at
        if self.old.content[id(old)] == self.new.content[id(new)]:
            for key, _ in self.old.held(old):
                one, other = self.old.argument(old, key), self.new.argument(new, key)
                yield Edge((old, new), (walk.step_to(key), walk.step_to(key)), one, other, at)
            return
        olds, news = self.old.arguments(old), self.new.arguments(new)
        tags = fiddle.nonempty_tags(old), fiddle.nonempty_tags(new)
        is_same_call = _call_of(old)[1] == _call_of(new)[1]
        for key in {**olds, **news}:
            is_plain = not walk.IS_NODE[type(olds.get(key, fdl.NO_VALUE))]
            is_same = olds.get(key, fdl.NO_VALUE) is news.get(key, fdl.NO_VALUE)
            if is_plain and is_same and tags[0].get(key) == tags[1].get(key):
                continue
            one, other = self.old.argument(old, key), self.new.argument(new, key)
            if is_same_call or not _comes_with_the_call(one, other):
                edge = Edge((old, new), (walk.step_to(key), walk.step_to(key)), one, other, at)
                if is_same_call or (key in olds and key in news):
                    had, has = (side.get(key, frozenset()) for side in tags)
                    edge.lost = changes.names_of(had - has, has)
                    edge.added = changes.names_of(has - had, had)
                yield edge

    def _enter(self, edge: Edge, old: Any, new: Any) -> Iterator[Edge]:
        """Yield the items of two containers."""
        if (id(old), id(new)) in self._containers:
            return
        self._containers.add((id(old), id(new)))
        if fiddle.kind_of(old) is not fiddle.kind_of(new):
            edge.at.findings.append(("call", edge))
        if isinstance(old, dict):
            for key in {**old, **new}:
                one, other = (Argument(held.get(key, fdl.NO_VALUE)) for held in (old, new))
                step = walk.step_from(old, key)
                yield Edge((old, new), (step, step), one, other, edge.at)
            return
        keys = (
            [self._keys(self.old, item) for item in old],
            [self._keys(self.new, item) for item in new],
        )
        likes: dict[Hashable, Any] = {}
        for item, own in zip(old, keys[0], strict=True):
            for key in own if walk.IS_PART[type(item)] else ():
                likes.setdefault(key, item)
        for i, j in _align(*keys):
            steps = None if i is None else f"[{i}]", None if j is None else f"[{j}]"
            one = Argument(fdl.NO_VALUE if i is None else old[i])
            other = Argument(fdl.NO_VALUE if j is None else new[j])
            item = Edge((old, new), steps, one, other, edge.at)
            if i is None and walk.IS_PART[type(other.value)]:
                item.like = next((likes[key] for key in keys[1][j or 0] if key in likes), None)
            yield item

    def _keys(self, graph: BoundGraph, item: Any) -> tuple[Hashable, ...]:
        """Return keys that identify an item of a list: its content, or else what it calls."""
        if not graph.has_parts(item):
            return (value_key(item),) * 2
        return graph.written[id(item)], _call_of(item)

    def _side(self, which: int, edge: Edge) -> changes.Side:
        graph, argument = (self.old, self.new)[which], (edge.old, edge.new)[which]
        holder, step, path, other = edge.holders[which], edge.steps[which], None, None
        if step is not None:
            path = walk.join("" if holder is None else graph.path(holder), step)
            if walk.IS_PART[type(argument.value)]:
                parents = graph.node_of[id(argument.value)].parents[:2]
                paths = [walk.join(parent.path, way) for parent, way in parents]
                other = paths[paths[0] == path] if len(paths) > 1 else None
        return changes.Side(
            path,
            self._originals.get(id(argument.value), argument.value),
            inherited_from=argument.binding.path if argument.binding else None,
            is_default=argument.is_default,
            shared_with=other,
        )

    def _value_change(self, edge: Edge, old: changes.Side, new: changes.Side) -> changes.Change:
        was, now = edge.old.value, edge.new.value
        had, has = self.old.has_parts(was), self.new.has_parts(now)
        if _differ_by_formula(was, now):
            had, has = had and not formulas.is_formula(was), has and not formulas.is_formula(now)
            if formulas.is_formula(now) and self._is_known(now):
                return changes.SharingChanged(old, new)
        if not has and (not had or formulas.is_formula(now)):
            for graph, part in ((self.old, was), (self.new, now)):
                if graph.has_parts(part):
                    self._report(graph, part)
            old, new = (replace(side, shared_with=None) for side in (old, new))  # as values are
            gone, came = (
                heirs.get(place, ()) for heirs, place in zip(self._heirs, edge.places, strict=True)
            )
            heirs = tuple(edge.path for edge in came or gone)
            return changes.ValueChanged(old, new, heirs, self._num_places(edge))
        if had and has and walk.IS_PART[type(was)] and walk.IS_PART[type(now)]:
            self._report(self.old, was)
            is_equal = self.old.content[id(was)] == self.new.content[id(now)]
            return changes.SharingChanged(old, new, is_equal)
        if had and has:
            return changes.PartReplaced(old, new)
        if edge.like is not None and edge.copy:
            partner = self.successor(edge.like)
            like = None if partner is None else self.new.path(partner)
            return changes.PartAdded(old, new, like=like)
        graph, part = (self.new, now) if has else (self.old, was)
        lives_elsewhere = walk.IS_PART[type(part)] and self._is_known(part)
        self._report(graph, part)
        if lives_elsewhere:
            return changes.SharingChanged(old, new)
        return (changes.PartAdded if has else changes.PartRemoved)(old, new)

    def _num_places(self, edge: Edge) -> int:
        """Return how many paths a value has in the new graph, or else in the old one."""
        which = 0 if edge.steps[1] is None else 1
        graph, holder, step = (self.old, self.new)[which], edge.holders[which], edge.steps[which]
        if holder is None or step is None or hints.is_quantity(holder):
            return 1
        return len(walk.places(graph.node_of[id(holder)], step))

    @cached_property
    def _heirs(self) -> list[dict[PlaceKey | None, list[Any]]]:
        """In each graph the parameters that inherit a value, by the place that sets it."""
        both: list[dict[PlaceKey | None, list[Any]]] = [{}, {}]
        for heirs, graph in zip(both, (self.old, self.new), strict=True):
            for inherited in graph.inherited:
                place = id(inherited.binding.node.value), walk.step_to(inherited.binding.key)
                heirs.setdefault(place, []).append(inherited)
        return both

    def _is_known(self, part: Any) -> bool:
        is_paired = id(part) in self._was or id(part) in self._all.became
        return is_paired or id(part) in self._reported

    def _report(self, graph: BoundGraph, value: Any) -> None:
        """Remember a part that was added or removed, with all the parts that only it holds.

        An added part shows the parts that it holds by their names; what these hold follows as
        changes inside.
        """
        stack = [("", value)]
        while stack:
            path, value = stack.pop()
            is_known = self._is_known(value)
            if graph is self.new and path and walk.IS_PART[type(value)]:
                self._inside += self._changes_inside(path, value, is_known)
            if is_known or not graph.has_parts(value):
                continue
            self._reported.add(id(value))
            if formulas.is_formula(value):
                continue
            inherited, own = graph.inherited_by(value), graph.path(value)
            stack += [
                (walk.join(own, walk.step_from(value, key)), child)
                for key, child in reversed(graph.held(value))
                if key not in inherited
            ]

    def _changes_inside(self, path: str, part: Any, is_known: bool) -> Iterator[changes.Change]:
        """Yield what the name of a part in an added one leaves out: its arguments, or sharing."""
        none, home = changes.Side(None), self.new.path(part)
        if is_known and home != path:
            yield changes.SharingChanged(none, changes.Side(path, part, shared_with=home))
        elif not is_known and changes.describe(part) != leaf_text(part):
            yield changes.PartAdded(none, changes.Side(path, part))


def _in_order(findings: list[_Finding]) -> Iterator[_Finding]:
    """Yield findings, each followed by the findings of a copy that begins there.

    Every edge that inherits another value is among them, whether it differs or not.
    """
    stack = [iter(findings)]
    while stack:
        for aspect, edge in stack[-1]:
            yield aspect, edge
            if aspect == "value" and edge.copy:
                stack.append(iter(edge.copy.findings))
                break
        else:
            stack.pop()


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
    differences = Comparison(old, new).differences()
    roots = [side.root if isinstance(side, BoundGraph | Resolved) else side for side in (old, new)]
    return changes.Changes(differences, *roots)


def since(base: Any, root: Any, *, name: str) -> str:
    """Return the name of the graph that another was made from, and a line for each difference.

    Raises:
      ConfigErrors: one of the graphs cannot be bound.
    """
    diffs = diff(base, root)
    return f"{name}, but\n{changes.diff_text(diffs)}" if diffs else f"{name}, unchanged\n"


def _differ_by_formula(old: Any, new: Any) -> bool:
    """Return whether one of two values is a formula, and the other not the same one."""
    are_formulas = [formulas.is_formula(side) for side in (old, new)]
    is_same = all(are_formulas) and formulas.as_written(old) == formulas.as_written(new)
    return any(are_formulas) and not is_same


def _call_of(value: Any) -> tuple[Hashable, ...]:
    """Return the kind of a part and what it calls; of a container, its type."""
    if not walk.IS_PART[type(value)]:
        return fiddle.kind_of(value), None
    called = fdl.get_callable(value)
    return fiddle.kind_of(value), called if isinstance(called, Hashable) else id(called)


def _comes_with_the_call(old: Argument, new: Argument) -> bool:
    """Return whether an argument differs only because another call has other parameters."""
    if old.is_own or new.is_own:
        return False
    has_both = old.value is not fdl.NO_VALUE and new.value is not fdl.NO_VALUE
    return not has_both or (old.binding is None and new.binding is None)


def _align(old: Keys, new: Keys) -> list[Pair]:
    """Return pairs of positions by the new position; a removed item follows the one before it.

    Items that agree in their first key are paired first, keeping the order of both lists; between
    these, items that agree in the next key; and so on. The rest of a gap is paired by position if
    the gap is equally long in both lists.

    Lists of one length whose items agree in their last key are paired by position if that takes no
    more changes: of many equal items, one that differs from the rest did not come from elsewhere.
    """
    pairs = dict(_pairs(old, new, (0, len(old)), (0, len(new)), 0))
    old_of = {j: i for i, j in pairs.items()}
    placed: list[tuple[int, Pair]] = [(j, (old_of.get(j), j)) for j in range(len(new))]
    after = -1
    for i in range(len(old)):
        after = pairs.get(i, after)
        if i not in pairs:
            placed.append((after, (i, None)))
    aligned = [pair for _, pair in sorted(placed, key=lambda place: place[0])]
    if len(old) != len(new) or any(a[-1] != b[-1] for a, b in zip(old, new, strict=True)):
        return aligned
    by_position: list[Pair] = [(i, i) for i in range(len(old))]
    return min(by_position, aligned, key=lambda pairs: _num_changes(pairs, old, new))


def _num_changes(pairs: Sequence[Pair], old: Keys, new: Keys) -> int:
    return sum(i is None or j is None or old[i][0] != new[j][0] for i, j in pairs)


def _pairs(
    old: Keys, new: Keys, olds: tuple[int, int], news: tuple[int, int], level: int
) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions that rise in both ranges, for keys of a level and less strict."""
    (i, end), (j, stop) = olds, news
    if i == end or j == stop:
        return
    if level == len(old[i]):
        yield from zip(range(i, end), range(j, stop), strict=True) if end - i == stop - j else ()
        return
    a = [keys[level] for keys in old[i:end]]
    b = [keys[level] for keys in new[j:stop]]
    for x, y, size in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        x, y = olds[0] + x, news[0] + y
        yield from _pairs(old, new, (i, x), (j, y), level + 1)
        yield from ((x + k, y + k) for k in range(size))
        i, j = x + size, y + size
