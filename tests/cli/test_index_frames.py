"""What the index keeps of configs rules out those that are far away, and never the nearest."""

import itertools

import pytest

from fidgpt import configs
from fidgpt.compose import reproduction as named
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.directives import compose
from fidgpt.compose.index import Index
from fidgpt.compose.knobs import frame_from, knobs_of, known_frames
from fidgpt.graph.spelling import frame_of, least_apart

CATALOGUE = own_catalogue()
NAMES = ("base", "debug", "gpt2_124m", "gemma3_270m", "deepseek_v2_lite", "olmo2_1b")
GRAPHS = {name: getattr(configs, name)() for name in NAMES if hasattr(configs, name)}


@pytest.mark.parametrize("name", GRAPHS)
def test_frames_of_knobs_are_those_of_the_graph(name: str) -> None:
    told, made = frame_from(knobs_of(GRAPHS[name])), frame_of(GRAPHS[name])
    assert least_apart(told, made) == least_apart(made, told) == 0
    assert sum(len(values) for _, values in told.values()) > 50


@pytest.mark.parametrize(("one", "other"), [*itertools.permutations(GRAPHS, 2)])
def test_they_are_as_far_apart(one: str, other: str) -> None:
    old, new = GRAPHS[one], frame_of(GRAPHS[other])
    assert 0 < least_apart(frame_from(knobs_of(old)), new) <= least_apart(frame_of(old), new)


def test_few_configs_are_made_to_find_the_nearest(
    kept_index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known_frames().keys() == {f"config:{name}" for name in kept_index["knobs"]}
    made: list[str] = []
    find = named.NamedGraphs.__getitem__
    monkeypatch.setattr(
        named.NamedGraphs,
        "__getitem__",
        lambda self, name: made.append(name) or find(self, name),
    )
    cfg = compose(["config:base", "set:seed=5", "set:optimizer.lr=1e-3"], CATALOGUE)
    assert named.nearest_named(cfg, CATALOGUE) == "config:base"
    assert len(set(made)) < 9
