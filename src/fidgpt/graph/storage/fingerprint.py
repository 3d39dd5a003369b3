"""The identity of a graph: a hash of all that decides what it builds."""

import hashlib
import json
import math
from typing import Any

import fiddle as fdl

from fidgpt.collection import without_collection
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.storage.codec import encode, encode_default, encode_dict
from fidgpt.graph.storage.lockstep import Apart, Lockstep
from fidgpt.graph.storage.merkle import Merkle, Sharing, Table, hashable
from fidgpt.graph.storage.names import name_of
from fidgpt.graph.storage.order import PLAIN, Order
from fidgpt.graph.structure.arguments import Key, default_of
from fidgpt.graph.structure.walk import IS_PART

_to_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode


@without_collection()
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


@without_collection()
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
