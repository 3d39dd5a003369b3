"""The bound view of a graph, its structural hashes, and equality by them."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.collection import gc_paused
from fidgpt.graph import binding, errors, fiddle, formulas, paths
from fidgpt.graph.storage import codec
from fidgpt.graph.walk import IS_NODE, IS_PART, Node, join, nodes, step_to

# Types whose values are written to JSON as they are.
PLAIN = frozenset({int, str, bool, type(None), type(fdl.NO_VALUE)})
_NO_BINDINGS: Mapping[fiddle.Key, binding.Binding] = {}
_to_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode


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
      errors: why parts of the graph have no form in a file; complete once it is hashed.
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
        resolved = binding.Resolved.of(root) if bound else None
        self.root = root.root if isinstance(root, binding.Resolved) else root
        self.node_of: dict[int, Node] = {}
        self.nodes: list[Node] = []
        self.errors: list[errors.ConfigError] = []
        self.owner_depth: dict[int, int] = {}
        found = resolved.nodes if resolved else nodes(self.root)
        self.inherited: list[binding.Inherited] = resolved.inherited if resolved else []
        self._inherited_by: dict[int, dict[fiddle.Key, binding.Binding]] = {}
        self._from_binding: dict[int, dict[fiddle.Key, Any]] = {}
        self._held: dict[int, list[Any]] = {}
        self._arguments: dict[int, dict[fiddle.Key, Any]] = {}
        self._names: dict[int, str] = {}
        self._without_form: dict[int, errors.ConfigError] = {}
        for one in self.inherited:
            self._inherited_by.setdefault(id(one.part), {})[one.key] = one.binding
            self._from_binding.setdefault(id(one.part), {})[one.key] = one.binding.value
        self._has_formulas = bound and any(formulas.is_formula(node.value) for node in found)
        if resolved and self._has_formulas:
            parts = [node for node in found if IS_PART[type(node.value)]]
            self._look_up_formulas(parts, resolved.bound)
        self._walk()
        self._sort_parents()

    def knows(self, value: Any) -> bool:
        """Return whether a value is a node of the graph."""
        return id(value) in self.node_of

    def held(self, value: Any) -> list[Any]:
        """Return the nodes that a node holds, in order, repeated if it holds them repeatedly."""
        return self._held[id(value)]

    def arguments(self, part: Any) -> dict[fiddle.Key, Any]:
        """Return all arguments of a part: set, inherited or default, else `fdl.NO_VALUE`."""
        known = self._arguments.get(id(part))
        if known is None:
            named = fiddle.named_defaults(part)
            known = _sorted(part) if named is None else {**named, **fiddle.raw_arguments(part)}
            known |= self._from_binding.get(id(part), {})
            self._arguments[id(part)] = known
        return known

    def inherited_by(self, part: Any) -> Mapping[fiddle.Key, binding.Binding]:
        """Return the bindings that the unset parameters of a part inherit."""
        return self._inherited_by.get(id(part), _NO_BINDINGS)

    def path(self, value: Any) -> str:
        """Return the first path of a node."""
        return self.node_of[id(value)].path

    @property
    def adds_nodes(self) -> bool:
        """Whether binding adds nodes, or other values to formulas, to what parts hold."""
        return self._has_formulas or any(IS_NODE[type(one.binding.value)] for one in self.inherited)

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
                todo += () if IS_PART[type(value)] else self.held(value)
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
            for child in map(id, self.held(node.value)):
                one, other = owner_of.get(child, mine), mine
                while one != other:
                    if depth[one] < depth[other]:
                        one, other = other, one
                    one = owner_of[one]
                owner_of[child] = one
        return owner_of

    def has_parts(self, value: Any) -> bool:
        """Return whether a value is a part or a container that holds one, at any depth."""
        return IS_PART[type(value)] or id(value) in self._part_holders

    @cached_property
    def _part_holders(self) -> set[int]:
        found: set[int] = set()
        for node in self.nodes:
            if any(IS_PART[type(one)] or id(one) in found for one in self.held(node.value)):
                found.add(id(node.value))
        return found

    @cached_property
    def content(self) -> dict[int, str]:
        """The content hash of every node, by identity."""
        return self._hashes(self.arguments)

    @cached_property
    def written(self) -> dict[int, str]:
        """The content hash of every node as if no parameter inherited a value, by identity."""
        return self._hashes(self._arguments_written) if self.inherited else self.content

    @cached_property
    def shape(self) -> dict[int, int]:
        """A hash of what every node calls, and of what the parts that it holds call."""
        found: dict[int, int] = {}
        for node in self.nodes:
            value = node.value
            call = id(fdl.get_callable(value)) if IS_PART[type(value)] else None
            held = [found[id(one)] for one in self.held(value) if self.has_parts(one)]
            found[id(value)] = hash((type(value), call, *held))
        return found

    @cached_property
    def digest(self) -> dict[int, str]:
        """The digest of every node, by identity; the content hash where nothing is shared."""
        if not self.shared:
            return self.content
        found: dict[int, str] = {}
        ranks: dict[tuple[int, str], int] = {}
        for node in self.nodes:
            me, held = id(node.value), [id(one) for one in self.held(node.value)]
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
        if self.errors:
            raise self.errors[0]
        return found

    def _look_up_formulas(self, found: list[Node], copy: Any) -> None:
        """Find the arguments that formulas have in the bound copy of the graph."""
        originals = {id(_at(copy, node.path)): node.value for node in found}
        for node in found:
            if formulas.is_formula(node.value):
                known = fiddle.set_arguments(_at(copy, node.path))
                values = {name: originals.get(id(v), v) for name, v in known["values"].items()}
                self._from_binding[id(node.value)] = known | {"values": values}

    def _walk(self) -> None:
        """Visit every node once, depth first, without recursion."""
        first = self.node_of[id(self.root)] = Node(self.root)
        done: set[int] = set()
        way = [(first, self._children(self.root))]
        while way:
            node, rest = way[-1]
            for step, value in rest:
                child = self.node_of.get(id(value))
                if child is None:
                    child = self.node_of[id(value)] = Node(value, [(node, step)])
                    way.append((child, self._children(value)))
                    break
                if id(value) not in done:
                    nodes(binding.bind(self.root))  # raises the error that names both places
                child.parents.append((node, step))
            else:
                way.pop()
                done.add(id(node.value))
                self.nodes.append(node)

    def _children(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Return the nodes that a node holds, with the steps to them; dicts in order of keys."""
        if IS_PART[type(value)]:
            found = [(k, v) for k, v in self.arguments(value).items() if IS_NODE[type(v)]]
            steps = [(step_to(key), one) for key, one in found]
        elif isinstance(value, dict):
            found = sorted(value.items(), key=lambda item: str(item[0]))
            steps = [(f"[{key!r}]", one) for key, one in found if IS_NODE[type(one)]]
        else:
            steps = [(f"[{i}]", one) for i, one in enumerate(value) if IS_NODE[type(one)]]
        self._held[id(value)] = [one for _, one in steps]
        return iter(steps)

    def _sort_parents(self) -> None:
        """Put the places that inherit a node after those that set it."""
        inheriting = {
            (id(one.part), step_to(one.key)): node
            for one in self.inherited
            if (node := self.node_of.get(id(one.binding.value))) is not None
        }
        for node in {id(node): node for node in inheriting.values()}.values():
            node.parents.sort(key=lambda parent: (id(parent[0].value), parent[1]) in inheriting)

    def _arguments_written(self, part: Any) -> dict[fiddle.Key, Any]:
        return self.arguments(part) | dict.fromkeys(self.inherited_by(part), fdl.NO_VALUE)

    def _hashes(self, arguments_of: Callable[[Any], dict[fiddle.Key, Any]]) -> dict[int, str]:
        """Return a hash of every node; nodes whose arguments are identical are hashed once."""
        found: dict[int, str] = {}
        by_form: dict[tuple[Any, ...], str] = {}
        for node in self.nodes:
            value, arguments = node.value, {}
            if IS_PART[type(value)]:
                arguments = arguments_of(value)
                items = (*arguments, *arguments.values())
                form = id(fdl.get_callable(value)), *fiddle.nonempty_tags(value).items()
            else:
                items = (*value, *value.values()) if isinstance(value, dict) else value
                form = ()
            form = type(value), *form, *(found.get(id(one)) or id(one) for one in items)
            if form not in by_form:
                written = (
                    self._part_form(value, arguments, found)
                    if IS_PART[type(value)]
                    else self._container_form(value, found)
                )
                by_form[form] = _hash_text(_to_json(written))
            found[id(value)] = by_form[form]
        return found

    def _part_form(
        self, part: Any, arguments: Mapping[fiddle.Key, Any], known: Mapping[int, str]
    ) -> Any:
        # By the first names of parameters, with those removed since, so that fingerprints stay.
        first = {new: old for old, new in codec.renamed(fdl.get_callable(part)).items()}
        values = dict(codec.declared(fdl.get_callable(part), "REMOVED"))
        for key, value in arguments.items():
            name = first.get(str(key), str(key))
            if value is fdl.NO_VALUE:
                continue
            values[name] = self._form(value, known)
            if error := self._without_form.get(id(value)):
                if value is fiddle.default_of(part, key):
                    values[name] = codec.encode_default(value)
                else:
                    place = join(self.path(part), step_to(key))
                    self.errors.append(errors.ConfigError(f"{place}: {error}"))
        tags = {
            first.get(str(key), str(key)): sorted(map(self._name, own))
            for key, own in fiddle.nonempty_tags(part).items()
        }
        try:
            called = self._name(fdl.get_callable(part))
        except errors.ConfigError as error:
            self.errors.append(errors.ConfigError(f"{self.path(part) or 'the root'}: {error}"))
            called = f"object {id(fdl.get_callable(part))}"
        return [type(part).__name__, called, values, tags]

    def _container_form(self, value: Any, known: Mapping[int, str]) -> Any:
        def item(one: Any) -> Any:
            form = self._form(one, known)
            if error := self._without_form.get(id(one)):
                self._without_form.setdefault(id(value), error)
            return form

        try:
            if type(value) not in (list, tuple, dict):
                codec.encode(value)  # raises
            written = codec.encode_items(value, item)
        except errors.ConfigError as error:
            self._without_form[id(value)] = error
            items = value.items() if isinstance(value, dict) else enumerate(value)
            return {repr(type(value)): sorted([repr(k), _to_json(item(v))] for k, v in items)}
        if type(value) is list:
            return {"list": written}
        written.get("items", []).sort(key=_to_json)  # the order of a dict has no meaning
        return written

    def _form(self, value: Any, known: Mapping[int, str]) -> Any:
        """Return a value as JSON, a node by its hash; what has no form in a file by its identity.

        Why it has none is kept by its identity.
        """
        if type(value) in PLAIN:
            return value
        if (own := known.get(id(value))) is not None:
            return {"node": own}
        try:
            encoded = codec.encode(value)
        except errors.ConfigError as error:
            self._without_form[id(value)] = error
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


def _at(root: Any, path: str) -> Any:
    """Return the part at a path; a tagged value of a list is one itself."""
    place = paths.find_parameter(root, path) if path else None
    if place is None:
        return root
    return place.container if isinstance(place.container, TaggedValueCls) else place.value


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
