"""Which quantities are said around each node of a graph, by whom, and where two places differ."""

from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.arguments import Key, given
from fidgpt.graph.walk import Node, is_node, join, parts, step_to

Tag = Any  # a class derived from fdl.Tag, which the metaclass hides from type checkers


@dataclass(frozen=True, slots=True)
class Said:
    """A quantity and the argument that says it."""

    value: Any
    node: Node
    key: Key

    @property
    def path(self) -> str:
        return join(self.node.path, step_to(self.key))

    def agrees(self, other: "Said | Conflict | None") -> bool:
        """Whether both say one value: the same part, or equal plain values."""
        if not isinstance(other, Said):
            return False
        if self.value is other.value:
            return True
        if type(self.value) is not type(other.value) or (is_node(self.value) and parts(self.value)):
            return False
        return self.value == other.value


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two values of one quantity at one node.

    Attributes:
      node: a node that two places hold, or a part with two arguments that say the quantity.
      first: the path through which one value comes, and that value; None where nobody says it.
      second: the same of the other one.
    """

    node: Node
    first: tuple[str, Said | None]
    second: tuple[str, Said | None]


Scope = dict[Tag, Said | Conflict]


def look_up(tag: Tag, scope: Scope) -> Said | Conflict | None:
    """What a scope says of a quantity, under its tag or one that the tag inherits from."""
    return next((scope[base] for base in tag.__mro__ if base in scope), None)


class Scopes:
    """The scope of every node, filled in one pass that meets parents before children."""

    def __init__(self) -> None:
        self._around: dict[int, Scope] = {}
        self._sayings: dict[int, dict[Key, frozenset[Tag]]] = {}
        self._inside: dict[int, Scope] = {}

    def enter(self, node: Node) -> None:
        """Works out what is said around a node, and what it says itself."""
        around = self._around_of(node)
        sayings = _sayings(node.value)
        self._around[id(node.value)] = around
        self._sayings[id(node.value)] = sayings
        self._inside[id(node.value)] = _overlay(around, node, sayings)

    def at(self, node: Node, key: Key | None) -> Scope:
        """The scope of one argument of a node that was entered.

        An argument does not hear itself: `HiddenDim.new(fdl.Config(half, HiddenDim.new()))` is
        half of what the parts around say.
        """
        sayings = self._sayings[id(node.value)]
        if key not in sayings:
            return self._inside[id(node.value)]
        others = {name: tags for name, tags in sayings.items() if name != key}
        return _overlay(self._around[id(node.value)], node, others)

    def _around_of(self, node: Node) -> Scope:
        if not node.parents:
            return {}
        (first, first_step), *others = node.parents
        merged = self.at(first, _key_of(first_step))
        for parent, step in others:
            scope = self.at(parent, _key_of(step))
            if scope is not merged:
                places = join(first.path, first_step), join(parent.path, step)
                merged = _merge(node, merged, scope, places)
        return merged


def _sayings(value: Any) -> dict[Key, frozenset[Tag]]:
    if not isinstance(value, fdl.Buildable) or not value.__argument_tags__:
        return {}
    tagged = value.__argument_tags__
    return {key: frozenset(tagged[key]) for key in given(value) if tagged.get(key)}


def _overlay(around: Scope, node: Node, sayings: dict[Key, frozenset[Tag]]) -> Scope:
    """A nearer word hides the farther one, for the tags that inherit from it too.

    Two arguments of one part that say the same tag differently are a conflict, like two places.
    """
    scope = around
    mine: dict[Tag, Said] = {}
    values = given(node.value) if sayings else {}
    for key, tags in sayings.items():
        said = Said(values[key], node, key)
        for tag in tags:
            scope = {t: s for t, s in scope.items() if t in mine or not issubclass(t, tag)}
            earlier = mine.setdefault(tag, said)
            scope[tag] = (
                earlier
                if earlier is said or earlier.agrees(said)
                else Conflict(node, (earlier.path, earlier), (said.path, said))
            )
    return scope


def _merge(node: Node, one: Scope, two: Scope, places: tuple[str, str]) -> Scope:
    """What both scopes say alike; a conflict for each quantity that they do not."""
    merged: Scope = {}
    for tag in one.keys() | two.keys():
        here, there = look_up(tag, one), look_up(tag, two)
        if isinstance(here, Conflict):
            merged[tag] = here
        elif isinstance(there, Conflict):
            merged[tag] = there
        elif here is not None and here.agrees(there):
            merged[tag] = here
        else:
            merged[tag] = Conflict(node, (places[0], here), (places[1], there))
    return merged


def _key_of(step: str) -> Key | None:
    return step[1:] if step.startswith(".") else None
