"""`diff` of whole and of random graphs: none exactly if the fingerprints are equal."""

import random
from typing import Any

import fiddle as fdl
import pytest
from fiddling import apply_to_any

from fidgpt import configs, fiddlers
from fidgpt.graph import clone, diff, diff_text, fingerprint

from .parts import Outer, Part, Rate, Square, Wide, Width, holding, pair


def test_diamonds_and_chains_are_walked_once() -> None:
    """A walk by paths would take 2**60 steps, one by recursion would overflow."""

    def diamonds(rate: float) -> fdl.Config:
        cfg = fdl.Config(Outer, rate=rate)
        for _ in range(60):
            cfg = fdl.Config(pair, cfg, cfg)
        return cfg

    assert len(diff(diamonds(0.1), diamonds(0.2))) == 1

    def nested_lists(rate: float) -> fdl.Config:
        held: Any = fdl.Config(Outer, rate=rate)
        for _ in range(60):
            held = [held, held]
        return fdl.Config(Outer, child=held)

    assert len(diff(nested_lists(0.1), nested_lists(0.2))) == 1

    def chain(rate: float) -> fdl.Config:
        cfg = fdl.Config(Outer, rate=Rate.new(rate))
        for _ in range(1_500):
            cfg = fdl.Config(Outer, child=cfg)
        return cfg

    assert len(diff(chain(0.1), chain(0.2))) == 1


@pytest.mark.parametrize("name", fiddlers.__all__)
def test_every_fiddler_makes_a_difference_exactly_if_the_fingerprint_differs(name: str) -> None:
    old, new = configs.gpt2_124m(), configs.gpt2_124m()
    apply_to_any(new, name)
    assert (
        (diff(old, new) == []) is (diff(new, old) == []) is (fingerprint(old) == fingerprint(new))
    )


def random_graph(rng: random.Random, num_parts: int = 6) -> fdl.Config:
    """A graph in which anything may hold and share anything that was made before."""
    made: list[Any] = [fdl.Config(Square, rng.randint(1, 2))]
    for _ in range(num_parts):
        held = [rng.choice(made) for _ in range(rng.randint(1, 3))]
        kind = rng.choice([fdl.Config, fdl.Partial])
        match rng.randint(0, 3):
            case 0:
                made.append(kind(holding, held))
            case 1:
                made.append(kind(pair, *held[:2]))
            case 2:
                made.append(fdl.Config(Outer, child=held[0], other={"a": held[-1], "b": 1}))
            case _:
                made.append(fdl.Config(rng.choice([Part, Wide]), Width.new(), child=held[0]))
    return fdl.Config(Outer, width=Width.new(rng.randint(1, 2)), child=made[-1], other=made[-2])


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_differ_exactly_if_their_fingerprints_do(seed: int) -> None:
    rng = random.Random(seed)
    graphs = [random_graph(rng) for _ in range(4)]
    for graph in list(graphs):
        changed = clone(graph)
        change_something(rng, rng.choice([changed, changed.child, changed.other]))
        graphs.append(changed)
    prints = [fingerprint(graph) for graph in graphs]
    for i, j in [
        *zip(range(4), range(4, 8), strict=True),
        *(rng.choices(range(8), k=2) for _ in range(8)),
    ]:
        changes = diff(graphs[i], graphs[j])
        assert (changes == []) is (prints[i] == prints[j]), diff_text(changes)


def change_something(rng: random.Random, part: Any) -> None:
    """A value, a part, a tag or what is shared; sometimes nothing."""
    names = [key for key in fdl.ordered_arguments(part) if isinstance(key, str)]
    name = rng.choice(names)
    match rng.randint(0, 4):
        case 0 if fdl.get_callable(part) is not holding:
            setattr(part, name, 5)
        case 1:
            fdl.add_tag(part, name, Rate)
        case 2 if isinstance(getattr(part, name), fdl.Buildable):
            setattr(part, name, clone(getattr(part, name)))
        case 3 if isinstance(getattr(part, name), list):
            getattr(part, name).reverse()
        case _:
            pass
