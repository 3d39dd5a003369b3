"""What is done with a graph costs twice as much for a graph twice as large, whatever its shape."""

from collections.abc import Callable
from typing import Any

import pytest

from fidgpt.graph import bind, check, clone, diff, dump, fingerprint, load, outline
from fidgpt.graph.storage.bound import equal

from . import synthetic
from .synthetic import SHAPES, chain, exponent, seconds

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


@pytest.mark.parametrize("name", TASKS)
def test_a_chain_of_a_thousand_is_no_limit(name: str) -> None:
    graph, other = chain(1000), chain(1000)
    other.a = 17
    TASKS[name](graph, other, dump(graph))
