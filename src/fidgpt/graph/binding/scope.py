"""Which quantities are said around each node of a graph, by whom, and where two places differ."""

from dataclasses import dataclass
from typing import Any

from fidgpt.graph.structure.arguments import Key, given
from fidgpt.graph.structure.walk import IS_PART, Node, is_node, join, parts, step_to

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
    for base in tag.__mro__:
        if base in scope:
            return scope[base]
    return None


class Scopes:
    """The scope of every node, filled in one pass that meets parents before children."""

    def __init__(self) -> None:
        self._around: dict[int, Scope] = {}
        self._sayings: dict[int, dict[Key, frozenset[Tag]]] = {}
        self._inside: dict[int, Scope] = {}

    def enter(self, node: Node) -> None:
        """Works out what is said around a node, and what it says itself."""
        me = id(node.value)
        scope = self._through(*node.parents[0]) if len(node.parents) == 1 else self._merged(node)
        if said := sayings(node.value):
            self._around[me], self._sayings[me] = scope, said
            scope = overlay(scope, node, said)
        self._inside[me] = scope

    def around(self, node: Node) -> Scope:
        """The scope in which a node stands that was entered, without what it says itself."""
        me = id(node.value)
        return self._around[me] if me in self._around else self._inside[me]

    def at(self, node: Node, key: Key | None) -> Scope:
        """The scope of one argument of a node that was entered.

        An argument does not hear itself: `HiddenDim.new(fdl.Config(half, HiddenDim.new()))` is
        half of what the parts around say.
        """
        said = self._sayings.get(id(node.value))
        if said is None or key not in said:
            return self._inside[id(node.value)]
        others = {name: tags for name, tags in said.items() if name != key}
        return overlay(self._around[id(node.value)], node, others)

    def _merged(self, node: Node) -> Scope:
        """What is said around a node through all its parents."""
        if not node.parents:
            return {}
        first, first_step = node.parents[0]
        merged = self._through(first, first_step)
        for parent, step in node.parents[1:]:
            scope = self._through(parent, step)
            if scope is not merged:
                places = join(first.path, first_step), join(parent.path, step)
                merged = _merge(node, merged, scope, places)
        return merged

    def _through(self, parent: Node, step: str) -> Scope:
        """The scope of what a step leads to."""
        if id(parent.value) not in self._sayings:
            return self._inside[id(parent.value)]
        return self.at(parent, _key_of(step))


def sayings(value: Any) -> dict[Key, frozenset[Tag]]:
    """The arguments of a part that say quantities, with their tags; none for a container."""
    if not IS_PART[type(value)] or not value.__argument_tags__:
        return {}
    tagged, known = value.__argument_tags__, value.__arguments__
    found = {key: frozenset(own) for key, own in tagged.items() if own and key in known}
    return found if len(found) < 2 else {key: found[key] for key in given(value) if key in found}


def overlay(around: Scope, node: Node, tagged: dict[Key, frozenset[Tag]]) -> Scope:
    """A nearer word hides the farther one, for the tags that inherit from it too.

    Two arguments of one part that say the same tag differently are a conflict, like two places.
    """
    scope = around
    mine: dict[Tag, Said] = {}
    for key, tags in tagged.items():
        said = Said(node.value.__arguments__[key], node, key)
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
