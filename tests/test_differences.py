"""Graphs with different fingerprints never print the same difference, and patches make them."""

import contextlib
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
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 300), marks=pytest.mark.long)])
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


LAYERS = ("set:model.num_layers=6", "fiddler:unroll(every=3)", "set:model.blocks[0].dropout=0.2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "num_pairs"),
    [(0, 12), *(pytest.param(i, 400, marks=pytest.mark.long) for i in (1, 2))],
)
def test_a_patch_on_another_config_does_what_its_directive_would(seed: int, num_pairs: int) -> None:
    """In whichever order, or it is refused; of places that are new there it knows nothing."""
    draw = random.Random(seed)
    base = ["config:debug", *draw.choice([[], ["set:model.num_layers=4", "fiddler:unroll"]])]
    num_applied = 0
    for _ in range(num_pairs):
        start = compose(base).config
        one, other = draw.sample([*draw_directives(draw, start, 4), draw.choice(LAYERS)], 2)
        with contextlib.suppress(graph.ConfigError):
            old, new, elsewhere = (compose([*base, *more]).config for more in ([], [one], [other]))
            expected = [compose([*base, *two]).config for two in ((other, one), (one, other))]
            made = graph.apply_patch(elsewhere, graph.dump_patch((old, new)))
            num_applied += 1
            left = min((graph.diff(want, made) for want in expected), key=len)
            known = [change.path for change in left if is_there(old, change.path)]
            assert not known, (one, other, known)
    assert num_applied > num_pairs // 3


def is_there(cfg: fdl.Config, path: str) -> bool:
    try:
        return bool(graph.find_parameter(cfg, path))
    except graph.ConfigError:
        return False
