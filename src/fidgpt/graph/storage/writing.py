"""From a graph to the document that a file holds: parts side by side, equal ones written once."""

import math
from collections.abc import Hashable
from operator import itemgetter
from typing import Any, NamedTuple

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.fiddle import Key, all_arguments, default_of, set_arguments
from fidgpt.graph.storage.codec import encode, encode_default, encode_dict, name_of
from fidgpt.graph.storage.equality import fingerprint_by, fingerprint_of
from fidgpt.graph.storage.hashing import Merkle, NotedMerkle, Table, hashable, leaf_key
from fidgpt.graph.storage.order import PLAIN, Order, step_between
from fidgpt.graph.walk import IS_PART, join, title
from fidgpt.graph.walk import parts as parts_of

FORMAT = "fidgpt.config"
VERSION = 1
TAGGED = "TaggedValue"  # a quantity that stands in a list; it calls nothing
_first = itemgetter(0)
KINDS = {"Config": fdl.Config, "Partial": fdl.Partial, "ArgFactory": fdl.ArgFactory}
_NOBODY: frozenset[int] = frozenset()
_Copy = tuple[int, frozenset[int]]  # a number, and who owns what the part shares with others


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
        self._order = Order(root, bound=False) if bound.has_more_nodes else bound
        self._table = Table()
        self._plain = Merkle(self._order, self._table, bound.kind_as_written)
        self._merkle = NotedMerkle(self._plain, self._note)
        self._open = self._owners_outside()
        self._copies: dict[int, _Copy] = {}
        self._names: dict[_Copy, str] = {}
        self._callables: dict[Any, str] = {}
        self._defaults: dict[Hashable, dict[str, Any]] = {}
        self._todo: list[_Place] = []

    def fingerprint(self) -> str:
        """The fingerprint of the graph."""
        if self._order is not self._bound:
            return fingerprint_of(self._bound)
        return fingerprint_by(self._plain, self._table)

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
        heard = self._bound.heard_by(part)
        if not heard:
            return frozenset(part.__arguments__)
        return frozenset(part.__arguments__), frozenset(
            [
                (key, title(said.value) if IS_PART[type(said.value)] else leaf_key(said.value))
                for key, said in heard.items()
            ]
        )

    def _owners_outside(self) -> dict[int, frozenset[int]]:
        """For each node that holds parts which belong to one around it, those that they belong to.

        Only where these are the same nodes can one of two equal nodes be written for both.
        """
        found: dict[int, frozenset[int]] = {}
        order, several = self._order, self._order.several
        for value in order.nodes if several else ():
            outside: set[int] = set()
            for child in order.held(value):
                outside |= found.get(id(child), frozenset())
                if id(child) in several:
                    outside.add(order.owners.owner(child))
            outside.discard(id(value))
            if outside:
                found[id(value)] = frozenset(outside)
        return found

    def _copy(self, value: Any) -> _Copy:
        me = id(value)
        copy = self._copies.get(me)
        if copy is None:
            outside = self._open.get(me, _NOBODY)
            if me in self._order.several:
                outside |= {self._order.owners.owner(value)}
            copy = self._copies[me] = self._merkle.number(value), outside
        return copy

    def _part(self, part: Any, path: str) -> dict[str, Any]:
        """What a part calls, and its arguments."""
        heard, known = self._bound.heard_by(part), set_arguments(part)
        try:
            sections = {
                "set": self._said(part, path, known),
                "tags": self._tags(part),
                "heard": {str(key): self._show(said.value) for key, said in heard.items()},
                "defaults": self._defaults_beside(part, (*known, *heard)),
            }
            head = self._head(part)
        except ConfigError:
            with at(path or "the root", place=path):
                raise
        return head | {name: section for name, section in sections.items() if section}

    def _said(self, part: Any, path: str, known: dict[Key, Any]) -> dict[str, Any]:
        said: dict[str, Any] = {}
        for key, value in known.items():
            kind = type(value)
            if kind not in PLAIN and (kind is not float or not math.isfinite(value)):
                value = self._value(value, join(path, step_between(part, key)))
            said[str(key)] = value
        return said

    def _tags(self, part: Any) -> dict[str, list[str]]:
        tags = [(str(key), own) for key, own in part.__argument_tags__.items() if own]
        return {key: sorted(map(self._name, own)) for key, own in sorted(tags, key=_first)}

    def _head(self, part: Any) -> dict[str, Any]:
        head: dict[str, Any] = {}
        if (kind := type(part).__name__) in KINDS:
            head[kind] = self._name(fdl.get_callable(part))
        elif isinstance(part, TaggedValueCls):
            head[TAGGED] = None
        else:
            raise ConfigError(f"a {kind} cannot be saved: use Config, Partial or ArgFactory.")
        if id(part) in self._order.several:
            owner, *_ = self._order.lead[self._order.owners.owner(part)]
            head["one_in"] = self._names[self._copy(owner)]
        return head

    def _value(self, value: Any, path: str) -> Any:
        """A value of an argument; a part by the path under which it, or its equal, is written."""
        if not self._order.knows(value):
            return encode(value, {})
        if not IS_PART[type(value)]:
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
            return encode_dict(
                value, lambda key: self._value(value[key], f"{path}{step_between(value, key)}")
            )
        items = [self._value(item, f"{path}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}

    def _show(self, value: Any) -> Any:
        """A heard value for the reader's sake: a part by its path, which nobody reads back."""
        if type(value) in PLAIN:
            return value
        return encode(
            value, {id(node.value): self._order.path(node.value) for node in parts_of(value)}
        )

    def _defaults_beside(self, part: Any, known: tuple[Key, ...]) -> dict[str, Any]:
        """The defaults, as JSON, of the parameters that are not known."""
        kind = hashable(part.__fn_or_cls__), known
        if kind not in self._defaults:
            self._defaults[kind] = {
                str(key): encode_default(value)
                for key in all_arguments(part)
                if key not in known and (value := default_of(part, key)) is not fdl.NO_VALUE
            }
        return self._defaults[kind]

    def _name(self, thing: Any) -> str:
        key = hashable(thing)
        if key not in self._callables:
            self._callables[key] = name_of(thing)
        return self._callables[key]
