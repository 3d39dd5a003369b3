"""A graph with the values that its unset parameters inherit, without a copy, and its hashes."""

import copy
import hashlib
import sys
from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt import errors
from fidgpt.collection import gc_paused
from fidgpt.graph import codec, fiddle, formulas, walk
from fidgpt.graph.binding import Binding, Resolved
from fidgpt.graph.codec import to_json, value_key

# Types whose values are written to JSON as they are.
_PLAIN = frozenset({int, str, bool, type(None), type(fdl.NO_VALUE)})


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

    The hashes of its nodes cover inherited values and defaults.

    Two hashes describe a node. Its content hash covers what it calls, the values of all arguments,
    the tags and the content of the nodes inside. Its digest also covers which nodes are shared.
    Neither depends on the graph around the node, except that the digest of a shared node contains
    the depth of its owner: the innermost node that encloses every place that holds it.

    Attributes:
      root: the graph.
      nodes: its nodes; each follows the nodes that it holds.
      owner_depth: how many owners enclose a node; complete once `owner_of` is known.
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
        self.root = root.root if isinstance(root, Resolved) else root
        self.owner_depth: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._formless: set[int] = set()  # what no file can hold, by identity
        self._resolved = Resolved.of(root) if bound else None
        self.inherited = self._resolved.inherited if self._resolved else []
        self._formulas: dict[int, dict[fiddle.Key, Any]] = {}  # what they look up
        self._held: dict[int, list[tuple[fiddle.Key, Any]]] = {}
        self._arguments: dict[int, dict[fiddle.Key, Any]] = {}
        if self._resolved:
            self._look_up_formulas(self._resolved)
        self.node_of, ordered = walk.walk(self.root, self._find_held)
        inheriting = {(id(item.part), walk.step_to(item.key)) for item in self.inherited}
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
                if walk.IS_NODE[type(value)]:
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

    @cached_property
    def shared(self) -> set[int]:
        """The identities of the parts that more than one place holds.

        A container is no more than its items: two places that hold a list hold all its items.
        """
        kept: set[int] = set()
        todo = [node.value for node in self.nodes if len(node.parents) > 1]
        while todo:
            value = todo.pop()
            if id(value) not in kept:
                kept.add(id(value))
                todo += (
                    () if walk.IS_PART[type(value)] else [child for _, child in self.held(value)]
                )
        return {
            id(n.value) for n in self.nodes if id(n.value) in kept and walk.IS_PART[type(n.value)]
        }

    @cached_property
    def owner_of(self) -> dict[int, int]:
        """The owner of every node: the innermost part that encloses every place that holds it."""
        owner_of: dict[int, int] = {}
        depth = self.owner_depth
        depth[id(self.root)] = 0
        for node in reversed(self.nodes):
            me = id(node.value)
            is_owner = me not in owner_of or walk.IS_PART[type(node.value)]
            if is_owner and me in owner_of:
                depth[me] = depth[owner_of[me]] + 1
            mine = me if is_owner else owner_of[me]
            for child in (id(value) for _, value in self.held(node.value)):
                owner, other = owner_of.get(child, mine), mine
                while owner != other:
                    if depth[owner] < depth[other]:
                        owner, other = other, owner
                    owner = owner_of[owner]
                owner_of[child] = owner
        return owner_of

    @cached_property
    def content(self) -> dict[int, str]:
        """The content hash of every node, by identity."""
        hashes: dict[int, str] = {}
        for node in self.nodes:
            hashes[id(node.value)] = self.content_of(node.value, hashes)
        return hashes

    def content_of(self, value: Any, hashes: Mapping[int, str]) -> str:
        """Return the content hash of a node, given the hashes of the nodes inside by identity."""
        form = self._part_form if walk.IS_PART[type(value)] else self._container_form
        return _hash_text(to_json(form(value, hashes)))

    @cached_property
    def written(self) -> dict[int, Hashable]:
        """A key of the set values in every node and in the nodes that it holds, by identity."""
        keys: dict[int, Hashable] = {}
        for node in self.nodes:
            value, call = node.value, None
            if walk.IS_PART[type(value)]:
                call = id(fdl.get_callable(value)), *fiddle.nonempty_tags(value).items()
                items = fiddle.set_arguments(value).items()
            else:
                items = value.items() if isinstance(value, dict) else enumerate(value)
            arguments = [
                (
                    key,
                    fiddle.kind_of(v),
                    v if type(v) in walk.LEAVES else keys.get(id(v)) or value_key(v),
                )
                for key, v in items
            ]
            keys[id(value)] = hash((fiddle.kind_of(value), call, *arguments))
        return keys

    @cached_property
    def digest(self) -> dict[int, str]:
        """The digest of every node, by identity; the content hash where nothing is shared."""
        return self.digests_of(self.nodes, {}) if self.shared else self.content

    def digests_of(self, nodes: Iterable[walk.Node], known: Mapping[int, str]) -> dict[int, str]:
        """Return known digests with the digests of some nodes; a node follows the nodes it holds.

        Args:
          nodes: all nodes, or some without a shared one.
          known: the digests of the others.
        """
        digests: dict[int, str] = {**known}
        ranks: dict[tuple[int, str], int] = {}
        for node in nodes:
            me, held = id(node.value), [id(child) for _, child in self.held(node.value)]
            digest = self.content[me]
            if any(digests[child] != self.content[child] for child in held):
                inside = '","'.join(digests[child] for child in held)
                digest = _hash_text(f'["{digest}",["{inside}"],null,0]')
            if me in self.shared:
                owner = self.owner_of[me]
                rank = ranks[owner, digest] = ranks.get((owner, digest), -1) + 1
                digest = _hash_text(f'["{digest}",null,{self.owner_depth[owner]},{rank}]')
            digests[me] = digest
        return digests

    def fingerprint(self) -> str:
        """Return the digest of the whole graph.

        Raises:
          ConfigError: the graph holds something that has no form in a file.
        """
        digest = self.digest[id(self.root)]
        if self._formless:
            self._require_forms()
        return digest

    def _require_forms(self) -> None:
        """Raise the error of the first value that no file can hold; defaults need not be held."""
        for node in (node for node in self.nodes if walk.IS_PART[type(node.value)]):
            with errors.at(node.path or "the root"):
                codec.name_of(fdl.get_callable(node.value))
            for key, value in self.arguments(node.value).items():
                if value is not fdl.NO_VALUE and value is not fiddle.default_of(node.value, key):
                    with errors.at(walk.join(node.path, walk.step_to(key))):
                        codec.encode(value, lambda part: None)

    def _part_form(self, part: Any, hashes: Mapping[int, str]) -> Any:
        # By the first names of parameters, with those removed since, so that fingerprints stay.
        function = fdl.get_callable(part)
        first_names = {new: old for old, new in codec.renamed(function).items()}
        values = dict(codec.declared(function, "REMOVED"))
        for key, value in self.arguments(part).items():
            if value is fdl.NO_VALUE:
                continue
            name = first_names.get(str(key), str(key))
            values[name] = self._form(value, hashes)
            if id(value) in self._formless and value is fiddle.default_of(part, key):
                values[name] = codec.encode_default(value)
        tags = {
            first_names.get(str(key), str(key)): sorted(map(self._name, carried))
            for key, carried in fiddle.nonempty_tags(part).items()
        }
        try:
            called = self._name(function)
        except errors.ConfigError:
            self._formless.add(id(part))
            called = f"object {id(function)}"
        return [type(part).__name__, called, values, tags]

    def _container_form(self, value: Any, hashes: Mapping[int, str]) -> Any:
        def item_form(item: Any) -> Any:
            form = self._form(item, hashes)
            if id(item) in self._formless and not walk.IS_PART[type(item)]:
                self._formless.add(id(value))
            return form

        try:
            if fiddle.kind_of(value) not in (list, tuple, dict):
                codec.encode(value)  # raises
            written = codec.encode_items(value, item_form)
        except errors.ConfigError:
            self._formless.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            return {repr(type(value)): sorted([repr(k), to_json(item_form(v))] for k, v in items)}
        if fiddle.kind_of(value) is list:
            return {"list": written}
        written.get("items", []).sort(key=to_json)  # the order of a dict has no meaning
        return written

    def _form(self, value: Any, hashes: Mapping[int, str]) -> Any:
        """Return a value as JSON, a node by its hash; what no file can hold by its identity."""
        if type(value) in _PLAIN:
            return value
        if (content := hashes.get(id(value))) is not None:
            return {"node": content}
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
            first_names = {new: old for old, new in codec.renamed(sys.modules[module]).items()}
            self._names[id(thing)] = f"{module}:{first_names.get(name, name)}"
        return self._names[id(thing)]

    def path(self, value: Any) -> str:
        """Return the first path of a node."""
        return self.node_of[id(value)].path

    def has_parts(self, value: Any) -> bool:
        """Return whether a value is a part or a container that holds one, at any depth."""
        return walk.IS_PART[type(value)] or id(value) in self._holders

    @cached_property
    def _holders(self) -> set[int]:
        return walk.holders(self.nodes[::-1])

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
                if not (walk.IS_PART[type(value)] and formulas.is_at(resolved.bound, name, value))
            }
            self._formulas[id(formula)] = known | {"values": values}

    def _find_held(self, value: Any) -> list[tuple[str, Any]]:
        """Return the nodes that a node holds; the order of a dict has no meaning."""
        if walk.IS_PART[type(value)]:
            items = self.arguments(value).items()
        elif isinstance(value, dict):
            items = sorted(value.items(), key=lambda item: str(item[0]))
        else:
            items = enumerate(value)
        held = self._held[id(value)] = [(key, one) for key, one in items if walk.IS_NODE[type(one)]]
        return [(walk.step_from(value, key), child) for key, child in held]


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


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
