"""How the cost of everything that is done with a graph grows with the graph.

    python benchmarks/config/scaling.py --sizes 100 1000 10000 100000

Processor seconds for each shape and size, the best of some, and the exponent of the growth over the
last two sizes from 1,000 on: 1 is twice the cost for twice the size.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from fidgpt.graph import (  # noqa: E402
    bind,
    check,
    clone,
    diff,
    dump,
    fingerprint,
    load,
    outline,
)
from fidgpt.graph.bound import equal  # noqa: E402
from tests.graph import synthetic  # noqa: E402

Task = Callable[[], Any]


def tasks(make: Callable[[int], Any], size: int) -> dict[str, Task]:
    """What is measured, on a graph of one size and on another that differs in a value."""
    graph, other = make(size), make(size)
    other.a = 17
    text = dump(graph)
    return {
        "bind": lambda: bind(graph),
        "check": lambda: check(graph),
        "print": lambda: outline(graph),
        "clone": lambda: clone(graph),
        "fingerprint": lambda: fingerprint(graph),
        "equality": lambda: equal(graph, other),
        "diff": lambda: diff(graph, other),
        "save": lambda: dump(graph),
        "load": lambda: load(text, allowed=synthetic.ALLOWED),
    }


def measure(make: Callable[[int], Any], sizes: list[int]) -> dict[str, list[float]]:
    """The seconds of each task, by size."""
    found: dict[str, list[float]] = {}
    for size in sizes:
        repeat = 5 if size <= 1000 else 2
        for name, task in tasks(make, size).items():
            found.setdefault(name, []).append(synthetic.seconds(task, repeat=repeat))
    return found


def growth(seconds: list[float], sizes: list[int]) -> str:
    """The exponent from 1,000 nodes, or the second size, to the last."""
    start = next((i for i, size in enumerate(sizes[:-1]) if size >= 1000), 0)
    if len(sizes) < 2:
        return ""
    ratio = sizes[-1] / sizes[start]
    return f"{synthetic.exponent(seconds[start], seconds[-1], ratio):.2f}"


def main() -> None:
    """Prints a table for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--shapes", nargs="+", default=list(synthetic.SHAPES))
    options = parser.parse_args()
    for shape in options.shapes:
        print("".join([f"{shape:14}", *(f"{size:>12,}" for size in options.sizes), "    exponent"]))
        for name, seconds in measure(synthetic.SHAPES[shape], options.sizes).items():
            cells = [f"{one:>12.4f}" for one in seconds]
            print("".join([f"  {name:12}", *cells, f"{growth(seconds, options.sizes):>12}"]))
        print(flush=True)


if __name__ == "__main__":
    main()
