"""Two graphs that hold the same parts in the same places, walked side by side."""

from operator import is_
from typing import Any

import fiddle as fdl

from fidgpt.graph.binding.bind import open_parameters
from fidgpt.graph.binding.scope import Conflict, Said, Scope, look_up, overlay, sayings
from fidgpt.graph.storage.merkle import leaf_key
from fidgpt.graph.storage.order import PLAIN
from fidgpt.graph.storage.walked import step_between
from fidgpt.graph.structure.arguments import Key, default_of, named_defaults
from fidgpt.graph.structure.walk import IS_NODE, IS_PART, LEAVES, Node, join, nodes
from fidgpt.graph.typed.formula import formula

# What both graphs hold in a place, what holds it in each, the key there, and what is said around.
Pair = tuple[Any, Any, Any, Any, Any, Scope]


class Apart(Exception):
    """The graphs differ in more than plain values, or it takes a closer look to know."""


class Lockstep:
    """Walks both graphs at once, as long as they hold the same in the same places.

    Neither is bound: where both say and hear alike, it is enough that what is said is equal. This
    costs a fraction of what it takes to look into each of them.

    Attributes:
      found: the places of parts that hold different plain values, in the order of the old graph.
      lead: the first place of each node that is none, by the identity of the old one.
      again: the identities of the old nodes that several places hold.
    """

    def __init__(self, old: Any, new: Any) -> None:
        """Compares two graphs.

        Raises:
          Apart: they are to be compared in full.
          ConfigError: a part contains itself.
        """
        self.found: list[Pair] = []
        self.lead: dict[int, Pair] = {}
        self.again: set[int] = set()
        self._was: dict[int, Any] = {}  # the old node that stands for each new one
        self._scopes: list[Scope] = []  # kept, because they are known by their identity
        self._heard: set[tuple[int, Any]] = set()
        todo: list[Pair] = [(old, new, None, None, None, {})]
        while todo:
            pair = todo.pop()
            if is_plain(pair[0]) and is_plain(pair[1]):
                self._differ(pair)
            elif self._meet(pair):
                below = self._arguments(pair) if IS_PART[type(pair[0])] else self._items(pair)
                todo += below[::-1]
        if self.again:
            nodes(old)  # which refuses a part that contains itself

    def path(self, value: Any) -> str:
        """The path of a node of the old graph, as of the one that stands for it."""
        steps: list[str] = []
        while (pair := self.lead[id(value)])[2] is not None:
            value = pair[2]
            steps.append(step_between(value, pair[4]))
        return "".join(reversed(steps)).removeprefix(".")

    def hearers(self, holder: Any, key: Key) -> tuple[str, ...]:
        """The paths of the parameters that hear a place of the old graph."""
        found: list[str] = []
        for part, *_, scope in self.lead.values() if key in sayings(holder) else ():
            for name, tags in open_parameters(part).items():
                word = look_up(next(iter(tags)), overlay(scope, Node(part), sayings(part)))
                if isinstance(word, Said) and word.node.value is holder and word.key == key:
                    found.append(join(self.path(part), step_between(part, name)))
        return tuple(found)

    def _differ(self, pair: Pair) -> None:
        """Remembers a place where parts hold other values."""
        if not _are_equal(pair[0], pair[1]):
            if not IS_PART[type(pair[2])]:
                raise Apart
            self.found.append(pair)

    def _meet(self, pair: Pair) -> bool:
        """Whether two nodes meet for the first time; those that meet again must be the same."""
        if type(pair[0]) is not type(pair[1]):
            raise Apart
        known = self.lead.setdefault(id(pair[0]), pair)
        if known is not pair:
            if known[1] is not pair[1] or known[5] is not pair[5]:
                raise Apart
            self.again.add(id(pair[0]))
            return False
        if self._was.setdefault(id(pair[1]), pair[0]) is not pair[0]:
            raise Apart
        return True

    def _arguments(self, pair: Pair) -> list[Pair]:
        old, new, *_, scope = pair
        mine, yours, tags = old.__arguments__, new.__arguments__, old.__argument_tags__
        function = old.__fn_or_cls__
        if function is not new.__fn_or_cls__ or function is formula:
            raise Apart
        said: dict[Key, Any] = {}
        if tags or new.__argument_tags__:
            if tags != new.__argument_tags__:
                raise Apart
            said, scope = self._listen(old, new, scope)
        is_same = list(mine) == list(yours) and all(map(is_, mine.values(), yours.values()))
        if is_same and LEAVES.issuperset(map(type, mine.values())):
            return []
        named = named_defaults(old)
        if named is None:
            raise Apart
        below: list[Pair] = []
        for key, default in named.items():
            one, other = mine.get(key, default), yours.get(key, default)
            if IS_NODE[type(one)] or not _are_equal(one, other):
                around = self._around(pair, said, key) if key in said else scope
                below.append((one, other, old, new, key, around))
        return below

    def _items(self, pair: Pair) -> list[Pair]:
        old, new, *_, scope = pair
        if len(old) != len(new):
            raise Apart
        if not isinstance(old, dict):
            pairs = zip(range(len(old)), old, new, strict=True)
        elif list(old) != list(new) or sorted(old, key=str) != list(old):
            raise Apart
        else:
            pairs = [(key, value, new[key]) for key, value in old.items()]
        return [
            (one, other, old, new, key, scope)
            for key, one, other in pairs
            if IS_NODE[type(one)] or not _are_equal(one, other)
        ]

    def _listen(self, old: Any, new: Any, scope: Scope) -> tuple[dict[Key, Any], Scope]:
        """What a part says, and the scope inside; all that it hears must be said."""
        mine, yours = old.__arguments__, new.__arguments__
        for key, tags in old.__argument_tags__.items():
            if tags and (key in mine) is not (key in yours):
                raise Apart
        if said := sayings(old):
            self._inside(new, scope, said)
            scope = self._inside(old, scope, said)
        for key, tags in old.__argument_tags__.items():
            if tags and key not in mine:
                self._hear(old, key, tags, scope)
        return said, scope

    def _inside(self, part: Any, scope: Scope, said: dict[Key, Any]) -> Scope:
        inside = overlay(scope, Node(part), said)
        self._scopes.append(inside)
        if any(isinstance(one, Conflict) for one in inside.values()):
            raise Apart
        return inside

    def _around(self, pair: Pair, said: dict[Key, Any], key: Key) -> Scope:
        """The scope of an argument that says a quantity, which does not hear itself."""
        others = {name: tags for name, tags in said.items() if name != key}
        return self._inside(pair[0], pair[5], others)

    def _hear(self, part: Any, key: Key, tags: set[Any], scope: Scope) -> None:
        if len(tags) > 1:
            raise Apart
        [tag] = tags
        if (id(scope), tag) in self._heard:
            return
        if look_up(tag, scope) is not None:
            self._heard.add((id(scope), tag))
        elif default_of(part, key) is fdl.NO_VALUE:
            raise Apart


def is_plain(value: Any) -> bool:
    """Whether a value is no part, and no container that holds nodes: a list of numbers is one."""
    kind = type(value)
    if not IS_NODE[kind]:
        return True
    if IS_PART[kind]:
        return False
    items = value.values() if isinstance(value, dict) else value
    return LEAVES.issuperset(map(type, items)) or not any(IS_NODE[type(one)] for one in items)


def _are_equal(one: Any, other: Any) -> bool:
    """Whether plain values are written alike; most that are, are one object."""
    if one is other:
        return True
    kind = type(one)
    if kind is type(other) and (kind in PLAIN or kind is float) and one and one == other:
        return True
    return leaf_key(one) == leaf_key(other)
