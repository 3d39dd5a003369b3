"""Graphs that differ in plain values alone: what was found out about one holds for the others."""

import contextlib
import copy
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.errors import ConfigError
from fidgpt.graph import fiddle, formulas
from fidgpt.graph.bound import BoundGraph
from fidgpt.graph.building import Constraint, check_and_bind, made_of, resolve_checked
from fidgpt.graph.checking import is_wrong
from fidgpt.graph.codec import is_same
from fidgpt.graph.hints import computed, is_quantity
from fidgpt.graph.selectors import find_parameters
from fidgpt.graph.walk import IS_NODE, IS_PART, LEAVES, nodes

_Place = tuple[int, fiddle.Key]  # the identity of a node and the key of an argument


class CheckedGraph:
    """A bound graph without errors, whose variants differ in plain values alone.

    A variant shares all that does not depend on these values: the inheritance, the results of
    constraints, the hashes of other nodes, and the objects built from them.

    Attributes:
      hashed: the bound graph.
      values: for a variant, its values by the identity of the bound node and the key.
    """

    def __init__(self, root: Any, constraints: Iterable[Constraint], fixed: Iterable[str]) -> None:
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
        noted = [functools.wraps(fn)(functools.partial(self._noted, fn)) for fn in constraints]
        bound = check_and_bind(resolved, constraints=noted, construct=False)
        self.hashed = BoundGraph(bound)
        self.fingerprint = self.hashed.fingerprint()
        self.values: Mapping[int, Mapping[fiddle.Key, Any]] = {}
        self._refs = functools.cache(functools.partial(find_parameters, bound))
        arguments = fiddle.raw_arguments(bound)
        self._fixed |= {(id(bound), name) for name in fixed}
        whole = [node.value for node in nodes([arguments.get(name) for name in fixed])[1:]]
        for node in resolved.nodes:
            part = self._copies[id(node.value)]
            self._fixed |= {(id(part), key) for key in node.compared}
            if formulas.is_formula(part):
                whole.append(part)
                for name in formulas.names_in(part.text):
                    with contextlib.suppress(ConfigError):  # a tag, which variants leave as it is
                        ref = self._refs(name)[0]
                        self._fixed.add((id(ref.container), ref.key))
        self._fixed |= {(id(part), key) for part in whole for key in _items(part)}
        self._inner = {id(node.value) for node in resolved.nodes if not _is_plain(node.value)}
        self._places: dict[_Place, list[tuple[Any, fiddle.Key]]] = {}
        for one in resolved.inherited:
            source = id(one.binding.node.value), one.binding.key
            self._places.setdefault(source, []).append((self._copies[id(one.part)], one.key))
        self._changed: Mapping[int, None] = {}
        self._made: dict[int, Any] = {}

    def _noted(self, constraint: Constraint, bound: Any) -> None:
        copies = [copy for copy in self._copies.values() if IS_PART[type(copy)]]
        with fiddle.recording(copies, self._fixed):
            constraint(bound)

    def variant(self, root: Any) -> "CheckedGraph | None":
        """Return another graph as a variant; None if it differs in more, or may be wrong."""
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
        """Return a key that is the same for graphs with the same arguments of the root."""
        known, digest = self.hashed.arguments(self.hashed.root), self.hashed.digest
        return tuple(digest.get(id(known.get(name))) or repr(known.get(name)) for name in names)

    def build(self, **given: Any) -> Any:
        """Build the graph; of a variant, what differs.

        Args:
          given: nodes that the root holds, built; a variant has its original's nodes.

        Raises:
          Exception: what a constructor raises.
        """
        bound, made = self.hashed.root, dict(self._made)
        if not made:
            arguments = fiddle.raw_arguments(bound)
            made = {id(arguments[name]): value for name, value in given.items()}
            rest = {key: argument for key, argument in arguments.items() if key not in given}
            inside = [node.value for node in nodes(rest)[:0:-1] if id(node.value) not in made]
        else:
            inside = [self.hashed.node_of[me].value for me in self._changed if me in made]
        for value in inside:
            made[id(value)] = made_of(value, made, self.values.get(id(value), {}))
        built = made_of(bound, made, self.values.get(id(bound), {}))
        self._made = made
        return built

    def value(self, selector: Any) -> Any:
        """Return the first value that a selector matches, or the number that is computed there.

        Raises:
          ConfigError: it matches nothing.
        """
        ref = self._refs(selector)[0]
        value = self.values.get(id(ref.container), {}).get(ref.key, ref.value)
        is_new = id(value) in self._changed and is_quantity(value)
        number = self._made[id(value)] if is_new else computed(value)
        return value if number is fdl.NO_VALUE else number

    def _differences(self, root: Any) -> dict[_Place, Any] | None:
        """Return the arguments that have other plain values; None if more differs.

        A node that both graphs hold is the same, with all inside of it.
        """
        differences: dict[_Place, Any] = {}
        twins, backs = dict[int, int](), dict[int, int]()
        todo = [(self._root, root)]
        while todo:
            old, new = todo.pop()
            me, other = id(old), id(new)
            is_known = me in twins
            if twins.setdefault(me, other) != other or backs.setdefault(other, me) != me:
                return None  # not the same places share it
            if is_known or old is new or me not in self._inner:
                continue
            olds, news = _items(old), _items(new)
            if _shape(old, olds) != _shape(new, news):
                return None
            for key, one in olds.items():
                value = news[key]
                are_nodes = IS_NODE[type(one)] and IS_NODE[type(value)]
                if are_nodes:
                    todo.append((one, value))
                if one is value or (are_nodes and id(one) in self._inner) or is_same(one, value):
                    continue
                is_plain = _is_plain(one) and _is_plain(value) and IS_PART[type(old)]
                if not is_plain or IS_NODE[type(one)] != IS_NODE[type(value)]:
                    return None
                differences[me, key] = value
        return differences


def _items(value: Any) -> Mapping[Any, Any]:
    if IS_PART[type(value)]:
        return fiddle.raw_arguments(value)
    return value if isinstance(value, dict) else dict(enumerate(value))


def _shape(value: Any, items: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Return what two nodes share that differ in the values of their items alone."""
    if not IS_PART[type(value)]:
        return type(value), list(items)
    called = fdl.get_callable(value)
    return type(value), id(called), items.keys(), fiddle.argument_tags(value)


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, text or the like, or a container of these."""
    items = _items(value).values() if type(value) in (list, tuple, dict) else [value]
    return all(type(item) in LEAVES for item in items)
