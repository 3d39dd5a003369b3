"""Graphs are worked on without a search for garbage, which goes on as before afterwards."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from fidgpt.collection import without_collection
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


@pytest.mark.parametrize("was_enabled", [True, False])
def test_it_is_afterwards_as_it_was(was_enabled: bool) -> None:
    try:
        if not was_enabled:
            gc.disable()
        with pytest.raises(ZeroDivisionError), without_collection():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()
