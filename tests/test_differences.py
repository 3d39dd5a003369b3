"""Graphs with different fingerprints never print the same difference, and patches make them."""

import random
from collections.abc import Iterator

import fiddle as fdl
import pytest
from drawn_directives import ALL_FAMILIES, changed, draw_directives, start_for

from fidgpt import graph
from fidgpt.compose.composition import compose
from fidgpt.graph.page import page


def mutants(cfg: fdl.Config, draw: random.Random, count: int) -> Iterator[fdl.Config]:
    """Copies of a graph, each with another value somewhere."""
    places = [
        (i, key)
        for i, node in enumerate(graph.parts(cfg))
        for key, value in fdl.ordered_arguments(node.value).items()
        if isinstance(key, str) and changed(value) is not None
    ]
    for i, key in draw.sample(places, min(count, len(places))):
        other = graph.clone(cfg)
        part = graph.parts(other)[i].value
        setattr(part, key, changed(getattr(part, key)))
        yield other


def drawn(draw: random.Random, family: str) -> Iterator[fdl.Config]:
    """What directives make of a family at random, and its mutants; some contradict themselves."""
    base = start_for(family, [])
    for _ in range(4):
        directives = draw_directives(draw, base, 3)
        try:
            cfg = compose(directives, base=start_for(family, directives)).config
        except graph.ConfigError:  # of directives that need another one
            continue
        yield from (cfg, *mutants(cfg, draw, 3))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 300), marks=pytest.mark.long)])
def test_a_difference_shows_everything_and_makes_it(seeds: range) -> None:
    compared = 0
    for seed in seeds:
        draw = random.Random(seed)
        family = draw.choice(ALL_FAMILIES)
        base = start_for(family, [])
        known: dict[tuple[str, str], str] = {}
        for cfg in drawn(draw, family):
            try:
                identity = graph.fingerprint(cfg)
            except graph.ConfigError:  # a value contradicts another one
                continue
            patch = graph.dump_patch((base, cfg))
            texts = {
                "text": graph.diff_text(graph.diff(base, cfg)),
                "patch": patch,
                "page": page(cfg, other=base),
            }
            for form in texts.items():
                assert known.setdefault(form, identity) == identity, form
            assert graph.fingerprint(graph.apply_patch(base, patch)) == identity, texts["text"]
            compared += 1
    assert compared > 6 * len(seeds)
