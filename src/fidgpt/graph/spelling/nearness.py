"""How many differences two graphs have at least, told without comparing them in full."""

from typing import Any

import fiddle as fdl

from fidgpt.graph.storage.order import PLAIN
from fidgpt.graph.structure.arguments import every, given
from fidgpt.graph.structure.walk import IS_PART, join, step_to, title
from fidgpt.graph.views.outline import leaf_text

_LEAVES = (PLAIN | {float}) - {type(fdl.NO_VALUE)}
Frame = dict[str, tuple[str, dict[str, str]]]


def frame_of(root: Any) -> Frame:
    """The parts whose place says which parts of another graph they stand for, by their path.

    These are reached by names, and through lists of one item. They are few, so that a frame is
    made in a fraction of the time that a comparison takes. Each has its call, and by its steps
    plain values and the calls of parts, as far as they are no matter of hearing; all as text.
    """
    frame: Frame = {}
    met: set[int] = set()
    todo: list[tuple[str, str, Any]] = [("", "", root)]
    while todo:
        above, step, node = todo.pop()
        if id(node) in met:
            continue
        if IS_PART[type(node)]:
            values, held = _values(node), {step_to(key): one for key, one in given(node).items()}
        elif type(node) is list and len(node) == 1:
            values, held = {}, {"[0]": node[0]}
        else:
            continue
        met.add(id(node))
        path, call = join(above, step), title(node) if step else ""  # the root is always compared
        frame[path] = call, values
        if step:
            frame[above][1][step] = call
        todo += [(path, key, value) for key, value in reversed(held.items())]
    return frame


def least_apart(old: Frame, new: Frame) -> int:
    """A number of differences that no comparison of two graphs stays below.

    As many places of one name that are to have one value count as one, since one directive may say
    so, no `distance` of what they differ in is less either.
    """
    found: set[tuple[str, str]] = set()
    for path, (call, values) in old.items():
        if path in new and new[path][0] == call:
            others = new[path][1]
            found |= {
                (step, others[step])
                for step, text in values.items()
                if step in others and text != others[step]
            }
    return len(found)


def _values(part: fdl.Buildable) -> dict[str, str]:
    """The plain values of a part, apart from those of parameters that may hear another."""
    known, tags = part.__arguments__, part.__argument_tags__
    return {
        step_to(key): leaf_text(value)
        for key, value in every(part).items()
        if type(value) in _LEAVES and (key in known or not tags.get(key))
    }
