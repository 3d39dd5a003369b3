"""The difference between two graphs that hold the same parts in the same places."""

from collections.abc import Hashable, Iterator
from typing import Any

import fiddle as fdl

from fidgpt.graph.difference.changes import Side, ValueChanged
from fidgpt.graph.storage.lockstep import Apart, Lockstep, Pair, is_plain
from fidgpt.graph.storage.merkle import leaf_key
from fidgpt.graph.storage.walked import step_between
from fidgpt.graph.structure.arguments import Key, named_defaults
from fidgpt.graph.structure.walk import IS_PART, join, nodes


def plain_changes(old: Any, new: Any) -> list[ValueChanged] | None:
    """What differs between two graphs where parts hold plain values; None where more may differ.

    It is what a full comparison finds.

    Raises:
      ConfigError: a part contains itself.
    """
    try:
        lockstep = Lockstep(old, new)
        _refuse_moved(lockstep)
    except Apart:
        return None
    return list(_changes(lockstep))


def _changes(lockstep: Lockstep) -> Iterator[ValueChanged]:
    for one, other, old, new, key, _ in lockstep.found:
        path = join(lockstep.path(old), step_between(old, key))
        sides = _side(path, old, key, one), _side(path, new, key, other)
        yield ValueChanged(*sides, lockstep.hearers(old, key))


def _side(path: str, part: Any, key: Key, value: Any) -> Side:
    is_set = key in part.__arguments__
    return Side(path, value, is_default=not is_set and value is not fdl.NO_VALUE)


def _refuse_moved(lockstep: Lockstep) -> None:
    """Items of a list stand for those in their places only if none went to another place.

    Raises:
      Apart: one may have.
    """
    touched: dict[int, dict[int, Pair]] = {}
    for pair in lockstep.found:
        node, key = pair[2], pair[4]
        while node is not None:
            if id(node) in lockstep.again:
                raise Apart
            if isinstance(node, list | tuple):
                touched.setdefault(id(node), {})[key] = lockstep.lead[id(node[key])]
            node, key = lockstep.lead[id(node)][2], lockstep.lead[id(node)][4]
    for items in touched.values():
        if len(items) > 1:
            olds, news = ({_words(pair[which]) for pair in items.values()} for which in (0, 1))
            if not olds.isdisjoint(news):
                raise Apart


def _words(item: Any) -> Hashable:
    """The same for items that are written alike, and seldom for others."""
    words: set[Hashable] = set()
    for node in nodes(item):
        if IS_PART[type(node.value)]:
            arguments = {**(named_defaults(node.value) or {}), **node.value.__arguments__}
            words |= {(key, leaf_key(one)) for key, one in arguments.items() if is_plain(one)}
    return frozenset(words)
