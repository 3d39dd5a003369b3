"""Graphs of any size and shape, to see how the cost of a function grows with them."""

import gc
import math
import time
from collections.abc import Callable
from typing import Any

import fiddle as fdl

from . import parts
from .parts import Width

ALLOWED = (__name__, parts.__name__)  # what a file with such a graph names


def leafy(
    a: int = 0,
    b: int = 0,
    c: float = 0.0,
    d: float = 0.0,
    e: str = "",
    f: str = "",
    g: bool = False,
    width: int = 1,
    first: Any = None,
    second: Any = None,
    items: Any = None,
) -> dict[str, Any]:
    """Eight leaves, and places for parts."""
    return locals()


def node(number: int, **held: Any) -> fdl.Config:
    """A part with eight leaves, in which it differs from the others."""
    leaves = {"a": number, "b": -number, "c": number / 8, "d": 0.5, "e": f"text {number}"}
    return fdl.Config(leafy, **leaves, f="", g=number % 2 == 0, width=number % 7, **held)


def wide(count: int) -> fdl.Config:
    """One part that holds all others in a list."""
    return node(0, items=[node(i) for i in range(1, count)])


def ten_deep(count: int) -> fdl.Config:
    """Ten levels, each part with as many items as it takes; the root sets a width."""
    fan = max(2, round(count ** (1 / 9.5)))
    level = [node(i) for i in range(count)]
    made = 0
    root = node(made)
    layer = [root]
    while made < count - 1:
        below = []
        for part in layer:
            fresh = [level[made + i] for i in range(1, fan + 1) if made + i < count]
            made += len(fresh)
            if fresh:
                part.items = fresh
            below += fresh
        layer = below
    del root.width
    root.width = Width.new(3)
    for part in layer:
        del part.width
        fdl.add_tag(part, "width", Width)
    return root


def diamonds(count: int) -> fdl.Config:
    """Towers of thirty levels in which each part holds the one below it twice."""
    towers: list[Any] = []
    for start in range(0, count - 1, 30):
        part = node(start)
        for i in range(start + 1, min(start + 30, count - 1)):
            part = node(i, first=part, second=part)
        towers.append(part)
    return node(count, items=towers)


SHAPES: dict[str, Callable[[int], fdl.Config]] = {
    "wide": wide,
    "ten deep": ten_deep,
    "diamonds": diamonds,
}


def seconds(function: Callable[[], Any], *, repeat: int = 3) -> float:
    """The processor time of a call, the best of some, without the garbage collector."""
    best = math.inf
    for _ in range(repeat):
        gc.collect()
        gc.disable()
        begin = time.process_time()
        function()
        best = min(best, time.process_time() - begin)
        gc.enable()
    return best


def exponent(small: float, large: float, ratio: float) -> float:
    """How the cost grows with the size: 1 for twice the cost at twice the size."""
    return math.log(large / small) / math.log(ratio)
