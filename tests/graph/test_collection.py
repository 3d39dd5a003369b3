"""Graphs are worked on without a search for garbage, which goes on as before afterwards."""

import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fidgpt.collection import gc_paused
from fidgpt.graph import bind, check, clone, diff, dump, equal, fingerprint, load, outline

from . import synthetic

GRAPH, OTHER = synthetic.wide(2000), synthetic.wide(2000)
OTHER.a = 17
TEXT = dump(GRAPH)
WORK: dict[str, Callable[[], Any]] = {
    "bind": lambda: bind(GRAPH),
    "check": lambda: check(GRAPH),
    "clone": lambda: clone(GRAPH),
    "diff": lambda: diff(GRAPH, OTHER),
    "dump": lambda: dump(GRAPH),
    "equal": lambda: equal(GRAPH, OTHER),
    "fingerprint": lambda: fingerprint(GRAPH),
    "load": lambda: load(TEXT, allowed=synthetic.ALLOWED),
    "outline": lambda: outline(GRAPH),
}


@pytest.mark.parametrize("name", WORK)
def test_a_large_graph_is_not_searched_for_garbage(name: str) -> None:
    searches: list[str] = []

    def watch(phase: str, _: dict[str, int]) -> None:
        searches.append(phase)

    gc.callbacks.append(watch)
    try:
        WORK[name]()
    finally:
        gc.callbacks.remove(watch)
    assert searches.count("start") <= 3  # what was made meanwhile is looked through once, after it


def test_what_stays_is_never_looked_through() -> None:
    """In a process of its own, in which nothing was set aside before."""
    program = "import gc; from fidgpt.collection import gc_paused as quiet\n"
    program += "with quiet(stays=True): first = [[] for _ in range(100_000)]\n"
    program += "once = gc.get_freeze_count()\n"
    program += "with quiet(stays=True): second = [[] for _ in range(100_000)]\n"
    program += "print(once > 100_000, gc.get_freeze_count() == once, gc.isenabled())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True True True\n", done.stderr


@pytest.mark.parametrize("was_enabled", [True, False])
def test_it_is_afterwards_as_it_was(was_enabled: bool) -> None:
    try:
        if not was_enabled:
            gc.disable()
        with pytest.raises(ZeroDivisionError), gc_paused():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()
