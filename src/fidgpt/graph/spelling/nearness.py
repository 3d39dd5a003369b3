"""How many differences two graphs have at least, told without comparing them in full."""

from typing import Any

import fiddle as fdl

from fidgpt.graph.storage.merkle import leaf_key
from fidgpt.graph.storage.order import PLAIN
from fidgpt.graph.structure.arguments import Key, named_defaults
from fidgpt.graph.structure.walk import IS_PART

_LEAVES = (PLAIN | {float}) - {type(fdl.NO_VALUE)}
_Path = tuple[Key, ...]
Frame = dict[_Path, tuple[Any, dict[Key, Any]]]


def frame_of(root: Any) -> Frame:
    """The parts whose place says which parts of another graph they stand for, by their path.

    These are reached by names, and through lists of one item. They are few, so that a frame is
    made in a fraction of the time that a comparison takes. Each has its call, and by its arguments
    plain values and the calls of parts, as far as they are no matter of hearing.
    """
    frame: Frame = {}
    met: set[int] = set()
    todo: list[tuple[_Path, Any]] = [((), root)]
    while todo:
        path, node = todo.pop()
        if id(node) in met:
            continue
        if IS_PART[type(node)]:
            call, values, held = _call(node), _values(node), node.__arguments__
        elif type(node) is list and len(node) == 1:
            call, values, held = list, {}, {0: node[0]}
        else:
            continue
        met.add(id(node))
        frame[path] = call, values
        if path:
            frame[path[:-1]][1][path[-1]] = call
        todo += [((*path, key), value) for key, value in held.items()]
    return frame


def least_apart(one: Frame, other: Frame) -> int:
    """A number of differences that no comparison of the two graphs stays below."""
    count = 0
    for path, (call, values) in one.items():
        if path in other and other[path][0] == call:
            others = other[path][1]
            count += sum(key in others and value != others[key] for key, value in values.items())
    return count


def _call(part: fdl.Buildable) -> tuple[type, Any]:
    return type(part), part.__fn_or_cls__


def _values(part: fdl.Buildable) -> dict[Key, Any]:
    """The plain values of a part, apart from those of parameters that may hear another."""
    known, tags = part.__arguments__, part.__argument_tags__
    return {
        key: leaf_key(value)
        for key, value in {**(named_defaults(part) or {}), **known}.items()
        if type(value) in _LEAVES and (key in known or not tags.get(key))
    }
