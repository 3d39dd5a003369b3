"""A graph with the values that its unset parameters inherit, without a copy of it."""

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph import fiddle, formulas
from fidgpt.graph.binding import Binding, Resolved
from fidgpt.graph.identity import HashedGraph
from fidgpt.graph.walk import IS_NODE, IS_PART, holders, step_from, step_to, walk


class Argument(NamedTuple):
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


class BoundGraph(HashedGraph):
    """A graph together with the values that its unset parameters inherit. Nothing is copied.

    The hashes of its nodes cover inherited values and defaults.

    Attributes:
      node_of: every node by the identity of its value, with all places that hold it. A place that
        inherits the node comes after those that set it.
      inherited: every unset parameter that inherits a value, in reading order.
    """

    def __init__(self, root: Any, *, bound: bool = True) -> None:
        """Resolve and walk a graph.

        Args:
          root: the graph, or the graph resolved.
          bound: whether unset parameters take the values that they inherit, and formulas those
            that they look up; otherwise all of these stay unset.

        Raises:
          ConfigErrors: the graph cannot be bound.
          ConfigError: a node contains itself.
        """
        super().__init__(root.root if isinstance(root, Resolved) else root)
        self._resolved = Resolved.of(root) if bound else None
        self.inherited = self._resolved.inherited if self._resolved else []
        self._formulas: dict[int, dict[fiddle.Key, Any]] = {}  # what they look up
        self._held: dict[int, list[tuple[fiddle.Key, Any]]] = {}
        self._arguments: dict[int, dict[fiddle.Key, Any]] = {}
        if self._resolved:
            self._look_up_formulas(self._resolved)
        self.node_of, ordered = walk(self.root, self._find_held)
        inheriting = {(id(item.part), step_to(item.key)) for item in self.inherited}
        height: dict[int, int] = {}
        for node in reversed(ordered):
            below = [height[id(child)] for _, child in self.held(node.value)]
            height[id(node.value)] = 1 + max(below, default=0)
            if inheriting and len(node.parents) > 1:
                node.parents.sort(key=lambda place: (id(place[0].value), place[1]) in inheriting)
        self.nodes = sorted(self.node_of.values(), key=lambda node: height[id(node.value)])

    def held(self, value: Any) -> list[tuple[fiddle.Key, Any]]:
        """Return the nodes that a node holds, by their keys; in dicts in the order of keys."""
        return self._held[id(value)]

    def arguments(self, part: Any) -> dict[fiddle.Key, Any]:
        """Return all arguments of a part: set, inherited or default, else `fdl.NO_VALUE`."""
        known = self._arguments.get(id(part))
        if known is None:
            named = fiddle.named_defaults(part)
            known = _sorted(part) if named is None else {**named, **fiddle.raw_arguments(part)}
            known |= {key: binding.value for key, binding in self.inherited_by(part).items()}
            known = self._arguments[id(part)] = known | self._formulas.get(id(part), {})
        return known

    def argument(self, part: Any, key: fiddle.Key) -> Argument:
        """Return one argument of a part."""
        value = self.arguments(part).get(key, fdl.NO_VALUE)
        source = self.inherited_by(part).get(key)
        is_set = source is not None or key in fiddle.raw_arguments(part)
        return Argument(value, source, is_default=not is_set and value is not fdl.NO_VALUE)

    def inherited_by(self, part: Any) -> Mapping[fiddle.Key, Binding]:
        """Return the bindings that the unset parameters of a part inherit."""
        return self._resolved.inherited_by(part) if self._resolved else {}

    def with_values(
        self, values: Mapping[int, Mapping[fiddle.Key, Any]]
    ) -> "tuple[BoundGraph, Mapping[int, None]]":
        """Return the graph with other plain values, and the identities of the nodes that changed.

        A changed node follows those inside of it. All others keep their hashes.

        Args:
          values: the new values of some nodes, by the identity of the node and the key; lists,
            tuples and dicts of plain values are among them.
        """
        new, hashes, known = copy.copy(self), dict(self.content), dict(self._arguments)
        changed: dict[int, None] = {}
        digests = dict(self.digest)
        vars(new).update(content=hashes, _arguments=known)
        for me, arguments in values.items():
            for key, value in arguments.items():
                if IS_NODE[type(value)]:
                    same = dict.fromkeys((id(value), id(known[me][key])), new.content_of(value, {}))
                    hashes |= same
                    digests |= same
            known[me] = {**known[me], **arguments}
        for node in self.nodes:
            me, held = id(node.value), self.held(node.value)
            if me in values or (held and any(id(child) in changed for _, child in held)):
                changed[me] = None
                hashes[me] = new.content_of(node.value, hashes)
        if self.shared.isdisjoint(changed):
            new.digest = new.digests_of(map(self.node_of.__getitem__, changed), digests)
        else:
            del new.digest
        return new, changed

    def path(self, value: Any) -> str:
        """Return the first path of a node."""
        return self.node_of[id(value)].path

    def has_parts(self, value: Any) -> bool:
        """Return whether a value is a part or a container that holds one, at any depth."""
        return IS_PART[type(value)] or id(value) in self._holders

    @cached_property
    def _holders(self) -> set[int]:
        return holders(self.nodes[::-1])

    def _look_up_formulas(self, resolved: Resolved) -> None:
        """Find the arguments that formulas have in the bound copy of the graph.

        Nodes that they look up by path are left out: they are held, and compared, in their places.
        """
        asked = [node.value for node in resolved.nodes if formulas.is_formula(node.value)]
        originals = {id(resolved.copies[id(n.value)]): n.value for n in resolved.nodes if asked}
        for formula in asked:
            known = fiddle.set_arguments(resolved.copies[id(formula)])
            values = {
                name: originals.get(id(value), value)
                for name, value in known["values"].items()
                if not (IS_PART[type(value)] and formulas.is_at(resolved.bound, name, value))
            }
            self._formulas[id(formula)] = known | {"values": values}

    def _find_held(self, value: Any) -> list[tuple[str, Any]]:
        """Return the nodes that a node holds; the order of a dict has no meaning."""
        if IS_PART[type(value)]:
            items = self.arguments(value).items()
        elif isinstance(value, dict):
            items = sorted(value.items(), key=lambda item: str(item[0]))
        else:
            items = enumerate(value)
        held = self._held[id(value)] = [(key, one) for key, one in items if IS_NODE[type(one)]]
        return [(step_from(value, key), child) for key, child in held]


@gc_paused()
def fingerprint(root: Any) -> str:
    """Return a hash of the bound graph as 64 hexadecimal digits.

    Two graphs have the same fingerprint exactly if they call the same things with the same values,
    defaults included, share the same nodes and carry the same tags. It does not depend on who set
    what, in which order or on which machine, nor on whether a value was set or inherited.

    Raises:
      ConfigError: the graph cannot be bound, or holds something that has no name.
    """
    return BoundGraph(root).fingerprint()


@gc_paused()
def equal(left: Any, right: Any) -> bool:
    """Return whether two graphs, once bound, have equal values, tags and sharing.

    Raises:
      ConfigError: one of the graphs cannot be bound.
    """
    return BoundGraph(left).digest[id(left)] == BoundGraph(right).digest[id(right)]


def _sorted(part: Any) -> dict[fiddle.Key, Any]:
    """Return all arguments; `**kwargs` come last, by name, because their order is arbitrary."""
    known, parameters = fiddle.all_arguments(part), fiddle.parameters_of(part)
    others = sorted(key for key in known if isinstance(key, str) and key not in parameters)
    return {key: known[key] for key in known if key not in others} | {k: known[k] for k in others}
