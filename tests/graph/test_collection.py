"""Graphs are worked on without a search for garbage, which goes on as before afterwards."""

import gc
import subprocess
import sys

import pytest

from fidgpt.collection import gc_paused
from fidgpt.graph import dump

from . import synthetic
from .test_scaling import TASKS

GRAPH, OTHER = synthetic.wide(2000), synthetic.wide(2000)
OTHER.a = 17
TEXT = dump(GRAPH)


@pytest.mark.parametrize("name", TASKS)
def test_a_large_graph_is_not_searched_for_garbage(name: str) -> None:
    searches: list[str] = []

    def watch(phase: str, _: dict[str, int]) -> None:
        searches.append(phase)

    gc.callbacks.append(watch)
    try:
        TASKS[name](GRAPH, OTHER, TEXT)
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
