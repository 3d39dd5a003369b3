"""Equality of two graphs."""

import hashlib
import json
import math
from operator import is_
from typing import Any

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph.binding import (
    Binding,
    Conflict,
    Scope,
    look_up,
    overlay,
    sayings,
    unset_parameters,
)
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.fiddle import Key, default_of, named_defaults
from fidgpt.graph.formulas import formula
from fidgpt.graph.storage.codec import encode, encode_default, encode_dict, name_of
from fidgpt.graph.storage.hashing import Merkle, Sharing, Table, hashable, leaf_key
from fidgpt.graph.storage.order import PLAIN, Order, step_between
from fidgpt.graph.walk import IS_NODE, IS_PART, LEAVES, Node, join, nodes

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
            for name, tags in unset_parameters(part).items():
                word = look_up(next(iter(tags)), overlay(scope, Node(part), sayings(part)))
                if isinstance(word, Binding) and word.node.value is holder and word.key == key:
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


_to_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode


@gc_paused()
def fingerprint(root: Any) -> str:
    """A hash of the bound graph, 64 hexadecimal digits.

    Two graphs have the same one exactly if they call the same things with the same values,
    defaults included, share the same nodes, and carry the same tags. It does not depend on who
    set what, in which order, on which machine. A value that was said and one that was heard are
    the same value. Takes time linear in the size of the graph.

    Raises:
      ConfigError: the graph cannot be bound, or holds what has no name.
    """
    return fingerprint_of(Order(root))


@gc_paused()
def equal(left: Any, right: Any) -> bool:
    """Whether two graphs build the same: equal values, tags and sharing, once they are bound.

    Raises:
      ConfigError: one of the graphs cannot be bound.
    """
    try:
        return not Lockstep(left, right).found
    except Apart:
        table = Table()
        return Merkle(Order(left), table).root == Merkle(Order(right), table).root


def fingerprint_of(order: Order) -> str:
    """The fingerprint of a graph that has been walked.

    Raises:
      ConfigError: it holds what has no name.
    """
    table = Table()
    return fingerprint_by(Merkle(order, table), table)


def fingerprint_by(merkle: Merkle, table: Table) -> str:
    """The fingerprint of a graph that was numbered by a table of its own.

    Raises:
      ConfigError: it holds what has no name.
    """
    return Hashes(table).of_root(merkle)


class Hashes:
    """The hashes behind the numbers of graphs, each made from those of what the node holds.

    Of graphs that are numbered by one table, one after the other, only what is new is hashed.
    A container that has no form in a file has an error in place of a hash, because a default need
    not have one.

    Args:
      table: gives the numbers of all graphs, and of nothing else.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._names: dict[Any, str] = {}
        self._hashes: list[str | ConfigError] = []

    def of_root(self, merkle: Merkle) -> str:
        """The fingerprint of a graph that is numbered by the table, later than all others.

        Raises:
          ConfigError: it holds what has no name.
        """
        self._merkle = merkle
        self._order = merkle.order
        root = merkle.root  # with which all that it holds is in the table
        mistakes: list[ConfigError] = []
        for sample in self._table.samples[len(self._hashes) :]:
            try:
                self._hashes.append(self._hash_of(sample))
            except ConfigError as error:  # told later, so that the next graph finds all hashes
                self._hashes.append(error)
                mistakes.append(error)
        if mistakes:
            raise mistakes[0]
        return self._known(root)

    def _hash_of(self, sample: Any) -> str | ConfigError:
        if isinstance(sample, Sharing):
            return self._shared(sample)
        if IS_PART[type(sample)]:
            return self._part(sample)
        return self._container(sample)

    def _known(self, number: int) -> str:
        found = self._hashes[number]
        if isinstance(found, ConfigError):
            raise found
        return found

    def _shared(self, sharing: Sharing) -> str | ConfigError:
        try:
            content = self._known(sharing.content)
            held = None if sharing.held is None else [*map(self._known, sharing.held)]
        except ConfigError as error:
            return error
        inside = "null" if held is None else '["' + '","'.join(held) + '"]'
        depth = "null" if sharing.depth is None else sharing.depth
        return _hash_text(f'["{content}",{inside},{depth},{sharing.rank}]')  # JSON of these four

    def _part(self, part: Any) -> str:
        arguments = self._order.arguments(part)
        values = {
            str(key): value
            if (kind := type(value)) in PLAIN or (kind is float and math.isfinite(value))
            else self._argument(part, key, value)
            for key, value in arguments.items()
            if value is not fdl.NO_VALUE
        }
        tags = {
            str(key): sorted(map(self._name, own))
            for key, own in part.__argument_tags__.items()
            if own
        }
        try:
            called = self._name(fdl.get_callable(part))
        except ConfigError as error:
            raise ConfigError(f"{self._order.path(part) or 'the root'}: {error}") from error
        return _hash([type(part).__name__, called, values, tags])

    def _argument(self, part: Any, key: Key, value: Any) -> Any:
        try:
            return self._encoded(value)
        except ConfigError as error:
            if value is default_of(part, key):
                return encode_default(value)
            raise ConfigError(f"{self._order.place(part, key)}: {error}") from error

    def _encoded(self, value: Any) -> Any:
        if not self._order.knows(value):
            return encode(value, {})
        return {"node": self._known(self._merkle.content(value))}

    def _container(self, value: Any) -> str | ConfigError:
        try:
            if type(value) not in (list, tuple, dict):
                encode(value, {})  # which says what is wrong with it
            if isinstance(value, dict):
                written = encode_dict(value, lambda key: self._encoded(value[key]))
                written.get("items", []).sort(key=_to_json)  # whose order means nothing
                return _hash(written)
            return _hash({type(value).__name__: [self._encoded(item) for item in value]})
        except ConfigError as error:
            return error

    def _name(self, thing: Any) -> str:
        key = hashable(thing)
        if key not in self._names:
            self._names[key] = name_of(thing)
        return self._names[key]


def _hash(content: Any) -> str:
    return _hash_text(_to_json(content))


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
