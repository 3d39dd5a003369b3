"""Conversion of a graph to the document of a config file, in which equal parts are one entry."""

import math
from collections.abc import Hashable
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.fiddle import (
    Key,
    all_arguments,
    default_of,
    nonempty_tags,
    raw_arguments,
    set_arguments,
)
from fidgpt.graph.storage.bound import PLAIN, BoundGraph, value_key
from fidgpt.graph.storage.codec import encode, encode_default, encode_dict, name_of
from fidgpt.graph.walk import IS_PART, join, step_to, title
from fidgpt.graph.walk import parts as parts_of

FORMAT = "fidgpt.config"
VERSION = 1
TAGGED = "TaggedValue"  # a quantity that stands in a list; it calls nothing
KINDS = {"Config": fdl.Config, "Partial": fdl.Partial, "ArgFactory": fdl.ArgFactory}
_NONE: frozenset[int] = frozenset()
# A number for all that must be equal, and the owners of what is shared with nodes outside.
_Copy = tuple[int, frozenset[int]]


def write(root: fdl.Buildable) -> dict[str, Any]:
    """Return a graph as a document.

    Raises:
      ConfigError: something in the graph has no name or form that a file can hold, or the graph
        cannot be bound.
    """
    bound = BoundGraph(root)
    identity = bound.fingerprint()
    written = _Writer(bound).parts()
    return {"format": FORMAT, "version": VERSION, "fingerprint": identity, "parts": written}


class _Writer:
    """Writes the parts of a graph; of several equal ones, only the first."""

    def __init__(self, bound: BoundGraph) -> None:
        self._bound = bound
        self._graph = BoundGraph(bound.root, bound=False) if bound.adds_nodes else bound
        self._copies = self._find_copies()
        self._paths: dict[_Copy, str] = {self._copies[id(bound.root)]: ""}
        self._callables: dict[int, str] = {}
        self._defaults: dict[Hashable, dict[str, Any]] = {}
        self._todo: list[tuple[Any, str]] = []

    def parts(self) -> dict[str, Any]:
        """Return the parts by their first path, each before the parts that it holds."""
        written: dict[str, Any] = {}
        self._todo = [(self._bound.root, "")]
        while self._todo:
            part, path = self._todo.pop()
            start = len(self._todo)
            written[path] = self._part(part, path)
            self._todo[start:] = self._todo[start:][::-1]
        return written

    def _find_copies(self) -> dict[int, _Copy]:
        """Return a key for each node; nodes with the same key are written once.

        Such nodes are equal, and so are the arguments that are set and inherited in all that they
        hold. What they share with the nodes around them belongs to the same owners.
        """
        graph = self._graph
        numbers: dict[Hashable, int] = {}
        number_of: dict[int, int] = {}
        outside_of: dict[int, frozenset[int]] = {}
        copies: dict[int, _Copy] = {}
        for node in graph.nodes:
            me, held = id(node.value), [id(one) for one in graph.held(node.value)]
            note = self._note(node.value) if IS_PART[type(node.value)] else None
            key = graph.digest[me], tuple(number_of[one] for one in held), note
            number_of[me] = numbers.setdefault(key, len(numbers))
            outside = frozenset().union(*(outside_of.get(one, _NONE) for one in held)) - {me}
            own = {graph.owners.of[me]} if me in graph.shared else _NONE
            if outside or own:
                outside_of[me] = outside | own
            copies[me] = number_of[me], outside | own
        return copies

    def _note(self, part: Any) -> Hashable:
        """Return what else must be equal in parts that are written once: what is set, inherited."""
        inherited = [
            (key, title(one.value) if IS_PART[type(one.value)] else value_key(one.value))
            for key, one in self._bound.inherited_by(part).items()
        ]
        return frozenset(raw_arguments(part)), frozenset(inherited)

    def _part(self, part: Any, path: str) -> dict[str, Any]:
        """Return the entry of a part: what it calls, and its arguments."""
        inherited, known = self._bound.inherited_by(part), set_arguments(part)
        try:
            sections = {
                "set": self._set_arguments(part, path, known),
                "tags": self._tags(part),
                "heard": {str(key): self._show(one.value) for key, one in inherited.items()},
                "defaults": self._defaults_beside(part, (*known, *inherited)),
            }
            head = self._head(part)
        except ConfigError:
            with at(path or "the root", place=path):
                raise
        return head | {name: section for name, section in sections.items() if section}

    def _set_arguments(self, part: Any, path: str, known: dict[Key, Any]) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for key, value in known.items():
            kind = type(value)
            if kind not in PLAIN and (kind is not float or not math.isfinite(value)):
                value = self._value(value, join(path, step_to(key)))
            written[str(key)] = value
        return written

    def _tags(self, part: Any) -> dict[str, list[str]]:
        tags = {str(key): own for key, own in nonempty_tags(part).items()}
        return {key: sorted(map(self._name, tags[key])) for key in sorted(tags)}

    def _head(self, part: Any) -> dict[str, Any]:
        head: dict[str, Any] = {}
        if (kind := type(part).__name__) in KINDS:
            head[kind] = self._name(fdl.get_callable(part))
        elif isinstance(part, TaggedValueCls):
            head[TAGGED] = None
        else:
            raise ConfigError(f"a {kind} cannot be saved: use Config, Partial or ArgFactory.")
        if id(part) in self._graph.shared:
            head["one_in"] = self._paths[self._copies[self._graph.owners.of[id(part)]]]
        return head

    def _value(self, value: Any, path: str) -> Any:
        """Return the value of an argument; a part as the path under which it or an equal is."""
        if IS_PART[type(value)]:
            copy = self._copies[id(value)]
            if copy not in self._paths:
                self._paths[copy] = path
                self._todo.append((value, path))
            word = "shared" if id(value) in self._graph.shared else "part"
            return {word: self._paths[copy]}
        if type(value) is dict:
            return encode_dict(value, lambda key: self._value(value[key], f"{path}[{key!r}]"))
        if type(value) in (list, tuple):
            items = [self._value(item, f"{path}[{i}]") for i, item in enumerate(value)]
            return items if type(value) is list else {"tuple": items}
        return encode(value, {})

    def _show(self, value: Any) -> Any:
        """Return an inherited value, a part as its path; it is for the reader, not for loading."""
        if type(value) in PLAIN:
            return value
        return encode(
            value, {id(node.value): self._graph.path(node.value) for node in parts_of(value)}
        )

    def _defaults_beside(self, part: Any, known: tuple[Key, ...]) -> dict[str, Any]:
        """Return the defaults, as JSON, of the parameters that are not known."""
        kind = id(fdl.get_callable(part)), known
        if kind not in self._defaults:
            self._defaults[kind] = {
                str(key): encode_default(value)
                for key in all_arguments(part)
                if key not in known and (value := default_of(part, key)) is not fdl.NO_VALUE
            }
        return self._defaults[kind]

    def _name(self, thing: Any) -> str:
        if id(thing) not in self._callables:
            self._callables[id(thing)] = name_of(thing)
        return self._callables[id(thing)]
