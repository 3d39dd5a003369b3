"""The bound view of a graph, its structural hashes, and equality by them."""

import hashlib
import json
import sys
from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph import errors, fiddle, formulas
from fidgpt.graph.binding import Binding, Resolved
from fidgpt.graph.storage import codec
from fidgpt.graph.walk import IS_NODE, IS_PART, LEAVES, holders, join, step_from, step_to, walk

# Types whose values are written to JSON as they are.
PLAIN = frozenset({int, str, bool, type(None), type(fdl.NO_VALUE)})
_to_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode


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


class BoundGraph:
    """A graph together with the values that its unset parameters inherit. Nothing is copied.

    Two hashes describe a node. Its content hash covers what it calls, the values of all arguments
    (inherited ones and defaults included), the tags and the content of the nodes inside. Its digest
    also covers which nodes are shared. Neither depends on what is around the node, except that the
    digest of a shared node contains the depth of its owner: the innermost node that encloses every
    place that holds it.

    Attributes:
      root: the graph.
      node_of: every node by the identity of its value, with all places that hold it. A place that
        inherits the node comes after those that set it.
      nodes: the same nodes; each follows the nodes that it holds.
      inherited: every unset parameter that inherits a value, in reading order.
      owner_depth: how many owners enclose a part; complete once `owner_of` is known.
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
        self.root = root.root if isinstance(root, Resolved) else root
        self.owner_depth: dict[int, int] = {}
        self._resolved = Resolved.of(root) if bound else None
        self.inherited = self._resolved.inherited if self._resolved else []
        self._formulas: dict[int, dict[fiddle.Key, Any]] = {}  # what they look up
        self._held: dict[int, list[tuple[fiddle.Key, Any]]] = {}
        self._arguments: dict[int, dict[fiddle.Key, Any]] = {}
        self._names: dict[int, str] = {}
        self._formless: set[int] = set()  # what no file can hold, by identity
        if self._resolved:
            self._look_up_formulas(self._resolved)
        self.node_of, found = walk(self.root, self._find_held)
        inheriting = {(id(one.part), step_to(one.key)) for one in self.inherited}
        height: dict[int, int] = {}
        for node in reversed(found):
            below = [height[id(one)] for _, one in self.held(node.value)]
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
            known |= {key: one.value for key, one in self.inherited_by(part).items()}
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

    def path(self, value: Any) -> str:
        """Return the first path of a node."""
        return self.node_of[id(value)].path

    @cached_property
    def shared(self) -> set[int]:
        """The identities of the parts that more than one place holds.

        A container is no more than its items: two places that hold a list hold all its items.
        """
        found: set[int] = set()
        todo = [node.value for node in self.nodes if len(node.parents) > 1]
        while todo:
            value = todo.pop()
            if id(value) not in found:
                found.add(id(value))
                todo += () if IS_PART[type(value)] else [one for _, one in self.held(value)]
        return {me for me in found if IS_PART[type(self.node_of[me].value)]}

    @cached_property
    def owner_of(self) -> dict[int, int]:
        """The owner of every node: the innermost part that encloses every place that holds it."""
        owner_of: dict[int, int] = {}
        depth = self.owner_depth
        depth[id(self.root)] = 0
        for node in reversed(self.nodes):
            me = id(node.value)
            is_owner = me not in owner_of or IS_PART[type(node.value)]
            if is_owner and me in owner_of:
                depth[me] = depth[owner_of[me]] + 1
            mine = me if is_owner else owner_of[me]
            for child in (id(one) for _, one in self.held(node.value)):
                one, other = owner_of.get(child, mine), mine
                while one != other:
                    if depth[one] < depth[other]:
                        one, other = other, one
                    one = owner_of[one]
                owner_of[child] = one
        return owner_of

    def has_parts(self, value: Any) -> bool:
        """Return whether a value is a part or a container that holds one, at any depth."""
        return IS_PART[type(value)] or id(value) in self._holders

    @cached_property
    def _holders(self) -> set[int]:
        return holders(self.nodes[::-1])

    @cached_property
    def content(self) -> dict[int, str]:
        """The content hash of every node, by identity; identical arguments are hashed once."""
        found: dict[int, str] = {}
        by_form: dict[tuple[Any, ...], str] = {}
        for node in self.nodes:
            value, call = node.value, ()
            if IS_PART[type(value)]:
                call = id(fdl.get_callable(value)), *fiddle.nonempty_tags(value).items()
                held, make = self.arguments(value), self._part_form
            else:
                held, make = value, self._container_form
            items = (*held, *held.values()) if isinstance(held, dict) else held
            form = fiddle.kind_of(value), *call, *(found.get(id(one)) or id(one) for one in items)
            if form not in by_form:
                by_form[form] = _hash_text(_to_json(make(value, found)))
            found[id(value)] = by_form[form]
        return found

    @cached_property
    def written(self) -> dict[int, Hashable]:
        """A key of what is set in every node and in those that it holds, by identity."""
        found: dict[int, Hashable] = {}
        for node in self.nodes:
            value, call = node.value, None
            if IS_PART[type(value)]:
                call = id(fdl.get_callable(value)), *fiddle.nonempty_tags(value).items()
                items = fiddle.set_arguments(value).items()
            else:
                items = value.items() if isinstance(value, dict) else enumerate(value)
            keys = [
                (
                    key,
                    fiddle.kind_of(v),
                    v if type(v) in LEAVES else found.get(id(v)) or value_key(v),
                )
                for key, v in items
            ]
            found[id(value)] = hash((fiddle.kind_of(value), call, *keys))
        return found

    @cached_property
    def digest(self) -> dict[int, str]:
        """The digest of every node, by identity; the content hash where nothing is shared."""
        if not self.shared:
            return self.content
        found: dict[int, str] = {}
        ranks: dict[tuple[int, str], int] = {}
        for node in self.nodes:
            me, held = id(node.value), [id(one) for _, one in self.held(node.value)]
            if not found.keys().isdisjoint(held):
                inside = '","'.join(found.get(one) or self.content[one] for one in held)
                found[me] = _hash_text(f'["{self.content[me]}",["{inside}"],null,0]')
            if me in self.shared:
                owner, own = self.owner_of[me], found.get(me) or self.content[me]
                rank = ranks[owner, own] = ranks.get((owner, own), -1) + 1
                found[me] = _hash_text(f'["{own}",null,{self.owner_depth[owner]},{rank}]')
        return self.content | found

    def fingerprint(self) -> str:
        """Return the digest of the whole graph.

        Raises:
          ConfigError: the graph holds something that has no form in a file.
        """
        found = self.digest[id(self.root)]
        if self._formless:
            self._require_forms()
        return found

    def _require_forms(self) -> None:
        """Raise the error of the first value that no file can hold; defaults need not be held."""
        for node in (one for one in self.node_of.values() if IS_PART[type(one.value)]):
            with errors.at(node.path or "the root"):
                codec.name_of(fdl.get_callable(node.value))
            for key, value in self.arguments(node.value).items():
                if value is not fdl.NO_VALUE and value is not fiddle.default_of(node.value, key):
                    with errors.at(join(node.path, step_to(key))):
                        codec.encode(value, lambda part: None)

    def _look_up_formulas(self, resolved: Resolved) -> None:
        """Find the arguments that formulas have in the bound copy of the graph.

        Nodes that they look up by path are left out: they are held, and compared, in their places.
        """
        found = [node.value for node in resolved.nodes if formulas.is_formula(node.value)]
        originals = {id(resolved.copies[id(n.value)]): n.value for n in resolved.nodes if found}
        for value in found:
            known = fiddle.set_arguments(resolved.copies[id(value)])
            values = {
                name: originals.get(id(one), one)
                for name, one in known["values"].items()
                if not (IS_PART[type(one)] and formulas.is_at(resolved.bound, name, one))
            }
            self._formulas[id(value)] = known | {"values": values}

    def _find_held(self, value: Any) -> list[tuple[str, Any]]:
        """Return the nodes that a node holds; the order of a dict has no meaning."""
        if IS_PART[type(value)]:
            items = self.arguments(value).items()
        elif isinstance(value, dict):
            items = sorted(value.items(), key=lambda item: str(item[0]))
        else:
            items = enumerate(value)
        held = self._held[id(value)] = [(key, one) for key, one in items if IS_NODE[type(one)]]
        return [(step_from(value, key), one) for key, one in held]

    def _part_form(self, part: Any, known: Mapping[int, str]) -> Any:
        # By the first names of parameters, with those removed since, so that fingerprints stay.
        first = {new: old for old, new in codec.renamed(fdl.get_callable(part)).items()}
        values = dict(codec.declared(fdl.get_callable(part), "REMOVED"))
        for key, value in self.arguments(part).items():
            name = first.get(str(key), str(key))
            if value is fdl.NO_VALUE:
                continue
            values[name] = self._form(value, known)
            if id(value) in self._formless and value is fiddle.default_of(part, key):
                values[name] = codec.encode_default(value)
        tags = {
            first.get(str(key), str(key)): sorted(map(self._name, own))
            for key, own in fiddle.nonempty_tags(part).items()
        }
        try:
            called = self._name(fdl.get_callable(part))
        except errors.ConfigError:
            self._formless.add(id(part))
            called = f"object {id(fdl.get_callable(part))}"
        return [type(part).__name__, called, values, tags]

    def _container_form(self, value: Any, known: Mapping[int, str]) -> Any:
        def item(one: Any) -> Any:
            form = self._form(one, known)
            if id(one) in self._formless and not IS_PART[type(one)]:
                self._formless.add(id(value))
            return form

        try:
            if fiddle.kind_of(value) not in (list, tuple, dict):
                codec.encode(value)  # raises
            written = codec.encode_items(value, item)
        except errors.ConfigError:
            self._formless.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            return {repr(type(value)): sorted([repr(k), _to_json(item(v))] for k, v in items)}
        if fiddle.kind_of(value) is list:
            return {"list": written}
        written.get("items", []).sort(key=_to_json)  # the order of a dict has no meaning
        return written

    def _form(self, value: Any, known: Mapping[int, str]) -> Any:
        """Return a value as JSON, a node by its hash; what no file can hold by its identity."""
        if type(value) in PLAIN:
            return value
        if (own := known.get(id(value))) is not None:
            return {"node": own}
        try:
            encoded = codec.encode(value)
        except errors.ConfigError:
            self._formless.add(id(value))
            return {"object": id(value)}
        if isinstance(encoded, dict) and encoded.keys() == {"name"}:  # a class or function
            return {"name": self._name(value)}
        return encoded

    def _name(self, thing: Any) -> str:
        """Return the name of a class or function, the first one if it was renamed.

        A fingerprint that was recorded under the first name then remains valid.
        """
        if id(thing) not in self._names:
            module, _, name = codec.name_of(thing).partition(":")
            first = {new: old for old, new in codec.renamed(sys.modules[module]).items()}.get(
                name, name
            )
            self._names[id(thing)] = f"{module}:{first}"
        return self._names[id(thing)]


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


def value_key(value: Any) -> str:
    """Return a text that is the same for values with the same form in a file.

    1, 1.0 and True differ; what has no form in a file is equal to itself alone.
    """
    try:
        return _to_json(codec.encode(value))
    except errors.ConfigError:
        return f"object {id(value)}"


def _sorted(part: Any) -> dict[fiddle.Key, Any]:
    """Return all arguments; those of `**kwargs` last, by name, because their order is arbitrary."""
    known, parameters = fiddle.all_arguments(part), fiddle.parameters_of(part)
    others = sorted(key for key in known if isinstance(key, str) and key not in parameters)
    return {key: known[key] for key in known if key not in others} | {k: known[k] for k in others}


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
