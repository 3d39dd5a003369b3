"""One system under test: a process that measures a cell of the table whenever it is asked to.

    python contestant.py SYSTEM

A line of standard input is a question, {"blocks": 12, "cell": "save", "budget": 0.5}, and a line of
standard output its answer. Before a cell is measured what it gives is compared with what it must.
"""

import gc
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import recipe

CHECKED_UP_TO = 48  # blocks: what holds there holds for more of the same
BUILDERS = {"start", "override", "assign", "load"}  # cells whose answer is a config


class Contestant:
    """A system, and the configs of one size that it made."""

    def __init__(self, name: str) -> None:
        self._system = importlib.import_module(f"systems.with_{name}").System()
        self._num_blocks = 0
        self._made: dict[str, Any] = {}

    def answer(self, *, blocks: int, cell: str, budget: float) -> dict[str, Any]:
        """Seconds of the fastest repeat within a budget of seconds; None if it has no such cell.

        With it, the bytes of a file that was saved, or how many differences were found.
        """
        if not hasattr(self._system, cell):
            return {"seconds": None}
        if blocks != self._num_blocks:
            self._num_blocks, self._made = blocks, {}
        function = getattr(self._system, cell)
        if blocks <= CHECKED_UP_TO:
            self._confirm(cell, function(*self._arguments(cell)))
        seconds, result = _fastest(function, lambda: self._arguments(cell), budget)
        if cell == "save":
            self._made["text"] = result
        counts = {"save": lambda: len(result.encode()), "diff": lambda: len(result)}
        return {"seconds": seconds, "count": counts[cell]() if cell in counts else None}

    def _arguments(self, cell: str) -> tuple[Any, ...]:
        """What a cell is called with; a config that it may change is a new one every time."""
        n, system = self._num_blocks, self._system
        if cell == "config":
            return (n,)
        if cell == "start":
            return n, recipe.overrides(n)
        if cell in ("override", "assign"):
            return system.config(n), recipe.overrides(n)
        if cell == "load":
            return (self._text(),)
        old = self._kept("old", lambda: system.config(n))
        if cell != "diff":
            return (old,)
        return old, self._kept("new", self._other)

    def _other(self) -> Any:
        n = self._num_blocks
        return self._system.assign(self._system.config(n), recipe.few_overrides(n))

    def _text(self) -> str:
        return self._kept("text", lambda: self._system.save(*self._arguments("save")))

    def _kept(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _confirm(self, cell: str, result: Any) -> None:
        """Raises AssertionError if a cell does not do what its name says."""
        n = self._num_blocks
        if cell in BUILDERS or cell == "build":
            changes = recipe.overrides(n) if cell not in ("load", "build") else {}
            built = result if cell == "build" else self._system.build(result)
            assert built == recipe.objects(n, changes), f"{cell} gives another config"


def _fastest(
    function: Callable[..., Any], arguments: Callable[[], tuple], budget: float
) -> tuple[float, Any]:
    """CPU seconds of the fastest call, and its result; garbage is collected between the calls.

    The budget is for all that happens, so that what makes the arguments does not outrun it.
    """
    seconds: list[float] = []
    end = time.monotonic() + budget
    result = None
    while not seconds or time.monotonic() < end:
        given = arguments()
        gc.collect()
        gc.disable()
        began = time.process_time()
        result = function(*given)
        seconds.append(time.process_time() - began)
        gc.enable()
    return min(seconds), result


def main() -> None:
    """Answers until there are no more questions."""
    contestant = Contestant(sys.argv[1])
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(contestant.answer(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
