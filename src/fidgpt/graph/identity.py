"""When values, nodes and graphs are the same: a key for each value and a hash for each node."""

import hashlib
import json
import sys
from collections.abc import Hashable, Iterable, Mapping
from functools import cached_property
from typing import Any

import fiddle as fdl

from fidgpt import errors
from fidgpt.graph import codec, fiddle
from fidgpt.graph.walk import IS_PART, LEAVES, Node, is_node, join, parts, step_to

# Types whose values are written to JSON as they are.
_PLAIN = frozenset({int, str, bool, type(None), type(fdl.NO_VALUE)})
_to_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode


def value_key(value: Any) -> str:
    """Return a text that is the same for values with the same form in a file.

    1, 1.0 and True differ; what has no form in a file is equal to itself alone.
    """
    try:
        return _to_json(codec.encode(value))
    except errors.ConfigError:
        return f"object {id(value)}"


def is_same(left: Any, right: Any) -> bool:
    """Return whether two values are one node, or equal plain values: 1 is not 1.0, nor 0.0 -0.0."""
    if left is right:
        return True
    if fiddle.kind_of(left) is not fiddle.kind_of(right):
        return False
    if type(left) in LEAVES:
        return repr(left) == repr(right)
    has_parts = is_node(left) and (parts(left) or parts(right))
    return not has_parts and value_key(left) == value_key(right)


class HashedGraph:
    """A graph whose nodes have hashes; a subclass defines the arguments of a node.

    Two hashes describe a node. Its content hash covers what it calls, the values of all arguments,
    the tags and the content of the nodes inside. Its digest also covers which nodes are shared.
    Neither depends on the graph around the node, except that the digest of a shared node contains
    the depth of its owner: the innermost node that encloses every place that holds it.

    Attributes:
      root: the graph.
      nodes: its nodes; each follows the nodes that it holds.
      owner_depth: how many owners enclose a node; complete once `owner_of` is known.
    """

    def __init__(self, root: Any) -> None:
        self.root = root
        self.nodes: list[Node] = []
        self.owner_depth: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._formless: set[int] = set()  # what no file can hold, by identity

    def arguments(self, part: Any) -> dict[fiddle.Key, Any]:
        """Return all arguments of a node; `fdl.NO_VALUE` where there is no value."""
        raise NotImplementedError

    def held(self, value: Any) -> list[tuple[fiddle.Key, Any]]:
        """Return the nodes that a node holds, by their keys; in dicts in the order of keys."""
        raise NotImplementedError

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
                todo += () if IS_PART[type(value)] else [child for _, child in self.held(value)]
        return {id(n.value) for n in self.nodes if id(n.value) in kept and IS_PART[type(n.value)]}

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
        form = self._part_form if IS_PART[type(value)] else self._container_form
        return _hash_text(_to_json(form(value, hashes)))

    @cached_property
    def written(self) -> dict[int, Hashable]:
        """A key of the set values in every node and in the nodes that it holds, by identity."""
        keys: dict[int, Hashable] = {}
        for node in self.nodes:
            value, call = node.value, None
            if IS_PART[type(value)]:
                call = id(fdl.get_callable(value)), *fiddle.nonempty_tags(value).items()
                items = fiddle.set_arguments(value).items()
            else:
                items = value.items() if isinstance(value, dict) else enumerate(value)
            arguments = [
                (
                    key,
                    fiddle.kind_of(v),
                    v if type(v) in LEAVES else keys.get(id(v)) or value_key(v),
                )
                for key, v in items
            ]
            keys[id(value)] = hash((fiddle.kind_of(value), call, *arguments))
        return keys

    @cached_property
    def digest(self) -> dict[int, str]:
        """The digest of every node, by identity; the content hash where nothing is shared."""
        return self.digests_of(self.nodes, {}) if self.shared else self.content

    def digests_of(self, nodes: Iterable[Node], known: Mapping[int, str]) -> dict[int, str]:
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
        for node in (node for node in self.nodes if IS_PART[type(node.value)]):
            with errors.at(node.path or "the root"):
                codec.name_of(fdl.get_callable(node.value))
            for key, value in self.arguments(node.value).items():
                if value is not fdl.NO_VALUE and value is not fiddle.default_of(node.value, key):
                    with errors.at(join(node.path, step_to(key))):
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
            if id(item) in self._formless and not IS_PART[type(item)]:
                self._formless.add(id(value))
            return form

        try:
            if fiddle.kind_of(value) not in (list, tuple, dict):
                codec.encode(value)  # raises
            written = codec.encode_items(value, item_form)
        except errors.ConfigError:
            self._formless.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            return {repr(type(value)): sorted([repr(k), _to_json(item_form(v))] for k, v in items)}
        if fiddle.kind_of(value) is list:
            return {"list": written}
        written.get("items", []).sort(key=_to_json)  # the order of a dict has no meaning
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


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
