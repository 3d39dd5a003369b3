"""From a graph to the document that a file holds: parts side by side, equal ones written once."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.arguments import Key, default_of, every, given
from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.storage.codec import encode, encode_default
from fidgpt.graph.storage.fingerprint import fingerprint_by, fingerprint_of
from fidgpt.graph.storage.merkle import Merkle, Table, hashable, leaf_key
from fidgpt.graph.storage.names import name_of
from fidgpt.graph.storage.order import PLAIN, Order, step_between
from fidgpt.graph.walk import IS_PART, join, title
from fidgpt.graph.walk import parts as parts_of

FORMAT = "fidgpt.config"
VERSION = 1
TAGGED = "TaggedValue"  # a quantity that stands in a list; it calls nothing
KINDS = {"Config": fdl.Config, "Partial": fdl.Partial, "ArgFactory": fdl.ArgFactory}
_Copy = tuple[int, frozenset[int]]


class _Place(NamedTuple):
    """A node that is to be written, and its path."""

    value: Any
    path: str


def write(root: fdl.Buildable) -> dict[str, Any]:
    """A graph as a document.

    Raises:
      ConfigError: something in the graph has no name or form that a file can hold, or the graph
        cannot be bound.
    """
    writing = _Writing(root, Order(root))
    identity = writing.fingerprint()
    return {"format": FORMAT, "version": VERSION, "fingerprint": identity, "parts": writing.parts()}


class _Writing:
    """Writes the parts of a graph, each once, and of equal ones the first."""

    def __init__(self, root: Any, bound: Order) -> None:
        self._root = root
        self._bound = bound
        self._heard: dict[int, dict[Key, Any]] = {}
        for one in bound.heard:
            self._heard.setdefault(id(one.part), {})[one.key] = one.said.value
        self._order = Order(root, bound=False) if bound.has_more_nodes else bound
        self._table = Table()
        self._merkle = Merkle(self._order, self._table, self._note)
        self._open = self._owners_outside()
        self._nodes = {id(value): value for value in self._order.nodes}
        self._names: dict[_Copy, str] = {}
        self._callables: dict[Any, str] = {}
        self._defaults: dict[Any, dict[Key, Any]] = {}
        self._todo: list[_Place] = []

    def fingerprint(self) -> str:
        """The fingerprint of the graph."""
        if self._order is not self._bound:
            return fingerprint_of(self._bound)
        if self._order.several:
            table = Table()
            return fingerprint_by(Merkle(self._bound, table, owners=self._merkle.owners), table)
        # Where nothing is shared, what is noted besides parts no more than what is equal.
        return fingerprint_by(self._merkle, self._table)

    def parts(self) -> dict[str, Any]:
        """The parts by their first path, each before what it holds."""
        written: dict[str, Any] = {}
        self._names[self._copy(self._root)] = ""
        self._todo = [_Place(self._root, "")]
        while self._todo:
            part, path = self._todo.pop()
            start = len(self._todo)
            written[path] = self._part(part, path)
            self._todo[start:] = self._todo[start:][::-1]
        return written

    def _note(self, part: Any) -> Hashable:
        """What else must be equal where a part is written once for several: what is said, heard."""
        heard = self._heard.get(id(part))
        if not heard:
            return frozenset(part.__arguments__)
        return frozenset(part.__arguments__), frozenset(
            [
                (key, title(value) if IS_PART[type(value)] else leaf_key(value))
                for key, value in heard.items()
            ]
        )

    def _owners_outside(self) -> dict[int, frozenset[int]]:
        """For each node that holds parts which belong to one around it, those that they belong to.

        Only where these are the same nodes can one of two equal nodes be written for both.
        """
        found: dict[int, frozenset[int]] = {}
        owners, several = self._merkle.owners, self._order.several
        if owners is None:
            return found
        for value in self._order.nodes:
            outside: set[int] = set()
            for child in self._order.held.get(id(value), ()):
                outside |= found.get(id(child), frozenset())
                if id(child) in several:
                    outside.add(owners.owner(child))
            outside.discard(id(value))
            if outside:
                found[id(value)] = frozenset(outside)
        return found

    def _copy(self, value: Any) -> _Copy:
        me, owners = id(value), self._merkle.owners
        outside = self._open.get(me, frozenset())
        if owners is not None and me in self._order.several:
            outside |= {owners.owner(value)}
        return self._merkle.numbers[me], outside

    def _part(self, part: Any, path: str) -> dict[str, Any]:
        """What a part calls, and its arguments."""
        heard, known = self._heard.get(id(part), {}), given(part)
        tags = part.__argument_tags__
        with at(path or "the root"):
            sections = {
                "set": self._said(part, path, known),
                "tags": {
                    str(key): sorted(map(self._name, own))
                    for key, own in sorted(tags.items(), key=lambda item: str(item[0]))
                    if own
                },
                "heard": {str(key): self._show(value) for key, value in heard.items()},
                "defaults": {
                    str(key): value
                    for key, value in self._defaults_of(part).items()
                    if key not in known and key not in heard
                },
            }
            head = self._head(part)
        return head | {name: section for name, section in sections.items() if section}

    def _said(self, part: Any, path: str, known: dict[Key, Any]) -> dict[str, Any]:
        if PLAIN.issuperset(map(type, known.values())):
            return {str(key): value for key, value in known.items()}
        return {
            str(key): value
            if type(value) in PLAIN
            else self._value(value, join(path, step_between(part, key)))
            for key, value in known.items()
        }

    def _head(self, part: Any) -> dict[str, Any]:
        owners = self._merkle.owners
        head: dict[str, Any] = {}
        if isinstance(part, TaggedValueCls):
            head[TAGGED] = None
        elif (kind := type(part).__name__) in KINDS:
            head[kind] = self._name(fdl.get_callable(part))
        else:
            raise ConfigError(f"a {kind} cannot be saved: use Config, Partial or ArgFactory.")
        if id(part) in self._order.several and owners is not None:
            head["one_in"] = self._names[self._copy(self._nodes[owners.owner(part)])]
        return head

    def _value(self, value: Any, path: str) -> Any:
        """A value of an argument; a part by the path under which it, or its equal, is written."""
        if id(value) not in self._merkle.content:
            return encode(value, {})
        if not isinstance(value, fdl.Buildable):
            return self._container(value, path)
        copy = self._copy(value)
        if copy not in self._names:
            self._names[copy] = path
            self._todo.append(_Place(value, path))
        word = "shared" if id(value) in self._order.several else "part"
        return {word: self._names[copy]}

    def _container(self, value: Any, path: str) -> Any:
        if type(value) not in (list, tuple, dict):
            return encode(value, {})
        if isinstance(value, dict):
            encode(dict.fromkeys(value), {})  # which refuses keys that are no text
            items = [
                (key, self._value(item, f"{path}{step_between(value, key)}"))
                for key, item in value.items()
            ]
            return {"dict": dict(items)}
        items = [self._value(item, f"{path}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}

    def _show(self, value: Any) -> Any:
        """A heard value for the reader's sake: a part by its path, which nobody reads back."""
        if type(value) in PLAIN:
            return value
        return encode(
            value, {id(node.value): self._order.path(node.value) for node in parts_of(value)}
        )

    def _defaults_of(self, part: Any) -> dict[Key, Any]:
        """The defaults as JSON, in the order of the signature."""
        function = hashable(fdl.get_callable(part))
        if function not in self._defaults:
            defaults = {key: default_of(part, key) for key in every(part)}
            self._defaults[function] = {
                key: encode_default(value)
                for key, value in defaults.items()
                if value is not fdl.NO_VALUE
            }
        return self._defaults[function]

    def _name(self, thing: Any) -> str:
        key = hashable(thing)
        if key not in self._callables:
            self._callables[key] = name_of(thing)
        return self._callables[key]
