"""Graphs that differ in plain values alone: what was found out about one holds for the others."""

import copy
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph import fiddle, formulas
from fidgpt.graph.binding import Resolved
from fidgpt.graph.bound import BoundGraph
from fidgpt.graph.building import Constraint, check_and_bind, lends, made_of, resolve_checked
from fidgpt.graph.checking import is_wrong
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.hints import computed, is_quantity
from fidgpt.graph.identity import is_same
from fidgpt.graph.paths import find_parameter
from fidgpt.graph.selectors import find_parameters
from fidgpt.graph.walk import IS_NODE, IS_PART, LEAVES, nodes

_Place = tuple[int, fiddle.Key]  # the identity of a node and the key of an argument


class CheckedGraph:
    """A bound graph without errors, of which variants differ in plain values alone.

    A variant shares all that does not depend on these values: what is inherited from where, what
    constraints found, the hashes of other nodes, and what these built.

    Attributes:
      hashed: the bound graph.
      values: for a variant, its values by the identity of the bound node and the key.
    """

    def __init__(
        self, root: Any, constraints: Iterable[Constraint], *, fixed: Iterable[str]
    ) -> None:
        """Check and bind a graph; see `check_and_bind`.

        Args:
          root: the graph, which must not change any more.
          constraints: functions that inspect the whole bound graph and raise ValueError.
          fixed: arguments of the root in which variants may not differ, nor inside of them.

        Raises:
          ConfigErrors: every error, all at once.
          ConfigError: it has no fingerprint.
        """
        resolved = resolve_checked(root)
        self._fixed: set[_Place] = set()  # where variants may not differ
        self._root, self._copies = root, resolved.copies
        noted = [functools.wraps(one)(functools.partial(self._noted, one)) for one in constraints]
        bound = check_and_bind(resolved, constraints=noted, construct=False)
        self.hashed = BoundGraph(bound)
        self.fingerprint = self.hashed.fingerprint()
        self.values: Mapping[int, Mapping[fiddle.Key, Any]] = {}
        self._fix(resolved, fixed)
        inner = [node.value for node in resolved.nodes if not _is_plain(node.value)]
        self._inner = {  # with the nodes that each holds, twice
            id(value): [(one, one) for one in _items(value).values() if IS_NODE[type(one)]]
            for value in inner
        }
        self._places: dict[_Place, list[tuple[Any, fiddle.Key]]] = {}
        for one in resolved.inherited:
            source = id(one.binding.node.value), one.binding.key
            self._places.setdefault(source, []).append((self._copies[id(one.part)], one.key))
        self._changed: Sequence[int] = ()
        self._made: dict[int, Any] = {}
        self._given: Mapping[str, Any] = {}
        self._refs = functools.cache(functools.partial(find_parameters, bound))

    def _noted(self, constraint: Constraint, bound: Any) -> None:
        copies = [one for one in self._copies.values() if IS_PART[type(one)]]
        with fiddle.recording_reads(copies, self._fixed):
            constraint(bound)

    def _fix(self, resolved: Resolved, names: Iterable[str]) -> None:
        """Keep what decides who inherits what, what formulas compute from, and some arguments."""
        bound, arguments = resolved.bound, fiddle.raw_arguments(resolved.bound)
        inside = {name: arguments[name] for name in names if name in arguments}
        whole = [node.value for node in nodes(inside)[1:]]
        self._fixed |= {(id(bound), name) for name in names}
        for node in resolved.nodes:
            part = self._copies[id(node.value)]
            self._fixed |= {(id(part), key) for key in node.compared}
            if formulas.is_formula(part):
                whole.append(part)
                for name in formulas.names_in(part.text):
                    try:
                        ref = find_parameter(bound, name)
                    except ConfigError:  # a tag, whose parameter is fixed by its kind
                        continue
                    self._fixed.add((id(ref.container), ref.key))
        for part in whole:
            self._fixed |= {(id(part), key) for key in _items(part)}

    def variant(self, root: Any) -> "CheckedGraph | None":
        """Return what is known of another graph; None if it differs in more, or may be wrong."""
        changed = self._differences(root) if self._made else None
        if changed is None:
            return None
        values: dict[int, dict[fiddle.Key, Any]] = {}
        for (me, key), value in changed.items():
            for part, name in ((self._copies[me], key), *self._places.get((me, key), ())):
                is_fixed = (id(part), name) in self._fixed or isinstance(part, TaggedValueCls)
                if is_fixed or is_wrong(part, name, value):
                    return None
                values.setdefault(id(part), {})[name] = value
        new = copy.copy(self)
        hashed, changed_nodes = self.hashed.with_values(values)
        vars(new).update(values=values, hashed=hashed, _changed=changed_nodes)
        new.fingerprint = hashed.fingerprint()
        return new

    def key(self, *names: str) -> tuple[Any, ...]:
        """Return what is the same for graphs with the same arguments of the root."""
        known, digest = self.hashed.arguments(self.hashed.root), self.hashed.digest
        return tuple(digest.get(id(known.get(name))) or repr(known.get(name)) for name in names)

    def build(self, **given: Any) -> Any:
        """Build the graph; of a variant, what differs.

        Args:
          given: arguments of the root that were built; a variant has those of its original.

        Raises:
          ConfigError: constructors would get containers of the graph itself.
          Exception: what a constructor raises.
        """
        bound = self.hashed.root
        if not self.values and lends(bound):
            raise ConfigError("constructors would get containers of the graph itself.")
        if not self.values:
            self._given = given
            rest = {k: v for k, v in fiddle.raw_arguments(bound).items() if k not in given}
            inside = {id(node.value): node.value for node in reversed(nodes(rest)[1:])}
        else:
            node_of = self.hashed.node_of
            inside = {me: node_of[me].value for me in self._changed if me in self._made}
        made = dict(self._made)
        for me, value in inside.items():
            made[me] = made_of(value, made, others=self.values.get(me, {}))
        others = {**self.values.get(id(bound), {}), **self._given}
        built = made_of(bound, made, others=others)
        self._made = made
        return built

    def value(self, selector: Any) -> Any:
        """Return the first value that a selector matches, or the number that is computed there.

        Raises:
          ConfigError: it matches nothing.
        """
        ref = self._refs(selector)[0]
        found = self.values.get(id(ref.container), {}).get(ref.key, ref.value)
        is_new = id(found) in self._changed and is_quantity(found)
        number = self._made[id(found)] if is_new else computed(found)
        return found if number is fdl.NO_VALUE else number

    def _differences(self, root: Any) -> dict[_Place, Any] | None:
        """Return the arguments that have other plain values; None if more differs."""
        found: dict[_Place, Any] = {}
        twins, backs = dict[int, int](), dict[int, int]()
        todo = [(self._root, root)]
        while todo:
            old, new = todo.pop()
            me, other = id(old), id(new)
            is_known = me in twins
            if twins.setdefault(me, other) != other or backs.setdefault(other, me) != me:
                return None  # not the same places share it
            if is_known or me not in self._inner:
                continue
            if old is new:
                todo += self._inner[me]
                continue
            olds, news = _items(old), _items(new)
            if not _is_alike(old, new, olds, news):
                return None
            for key, one in olds.items():
                value = news[key]
                if IS_NODE[type(one)] and IS_NODE[type(value)]:
                    todo.append((one, value))
                    if id(one) in self._inner:
                        continue
                elif one is value:
                    continue
                if is_same(one, value):
                    continue
                is_plain = _is_plain(one) and _is_plain(value) and IS_PART[type(old)]
                if not is_plain or IS_NODE[type(one)] != IS_NODE[type(value)]:
                    return None
                found[me, key] = value
        return found


def _items(value: Any) -> Mapping[Any, Any]:
    if IS_PART[type(value)]:
        return fiddle.raw_arguments(value)
    return value if isinstance(value, dict) else dict(enumerate(value))


def _is_alike(old: Any, new: Any, olds: Mapping[Any, Any], news: Mapping[Any, Any]) -> bool:
    """Whether two nodes call the same, with the same tags, and hold something under like keys."""
    if type(old) is not type(new):
        return False
    if not IS_PART[type(old)]:
        return list(olds) == list(news)
    return (
        fdl.get_callable(old) is fdl.get_callable(new)
        and olds.keys() == news.keys()
        and fiddle.argument_tags(old) == fiddle.argument_tags(new)
    )


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, text or the like, or a container of these."""
    if type(value) in (list, tuple, dict):
        return all(type(one) in LEAVES for one in _items(value).values())
    return type(value) in LEAVES
