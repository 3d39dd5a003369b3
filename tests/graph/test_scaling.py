"""What is done with a graph costs in proportion to its size, without a search for garbage."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from fidgpt.graph import bind, check, clone, diff, dump, fingerprint, load, outline
from fidgpt.graph.bound import equal

from . import synthetic
from .synthetic import SHAPES, exponent, seconds

TASKS: dict[str, Callable[[Any, Any, str], Any]] = {
    "bind": lambda graph, other, text: bind(graph),
    "check": lambda graph, other, text: check(graph),
    "print": lambda graph, other, text: outline(graph),
    "clone": lambda graph, other, text: clone(graph),
    "fingerprint": lambda graph, other, text: fingerprint(graph),
    "equality": lambda graph, other, text: equal(graph, other),
    "diff": lambda graph, other, text: diff(graph, other),
    "save": lambda graph, other, text: dump(graph),
    "load": lambda graph, other, text: load(text, allowed=synthetic.ALLOWED),
}
SMALL, LARGE = 100, 600


@pytest.fixture(scope="module", params=SHAPES)
def graphs(request: pytest.FixtureRequest) -> dict[int, tuple[Any, Any, str]]:
    """For each size a graph, one that differs in a value, and the file of the first."""
    found: dict[int, tuple[Any, Any, str]] = {}
    for size in (SMALL, LARGE):
        graph, other = SHAPES[request.param](size), SHAPES[request.param](size)
        other.a = 17
        found[size] = graph, other, dump(graph)
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", TASKS)
def test_the_cost_grows_with_the_size(name: str, graphs: dict[int, tuple[Any, Any, str]]) -> None:
    """What is quadratic has an exponent of 2; machines are too restless to ask for exactly 1."""
    found: list[float] = []
    for _ in range(3):
        small, large = (
            seconds(lambda one=graphs[size]: TASKS[name](*one), repeat=3) for size in (SMALL, LARGE)
        )
        found.append(exponent(small, large, LARGE / SMALL))
        if found[-1] <= 1.25:
            return
    assert min(found) <= 1.25


@pytest.fixture(scope="module")
def large() -> tuple[Any, Any, str]:
    """A graph of 2,000 nodes, one that differs in a value, and the file of the first."""
    graph, other = synthetic.wide(2000), synthetic.wide(2000)
    other.a = 17
    return graph, other, dump(graph)


@pytest.mark.slow
@pytest.mark.xdist_group("scaling")
@pytest.mark.parametrize("name", TASKS)
def test_a_large_graph_is_not_searched_for_garbage(name: str, large: tuple[Any, Any, str]) -> None:
    searches: list[str] = []

    def watch(phase: str, _: dict[str, int]) -> None:
        searches.append(phase)

    gc.callbacks.append(watch)
    try:
        TASKS[name](*large)
    finally:
        gc.callbacks.remove(watch)
    assert searches.count("start") <= 3  # what was made meanwhile is looked through once, after it
