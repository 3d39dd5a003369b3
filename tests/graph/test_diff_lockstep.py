"""A walk through two graphs side by side finds what a full comparison finds, or leaves it to it."""

import random
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigErrors, clone, diff
from fidgpt.graph.difference.changes import plain_changes
from fidgpt.graph.difference.compare import Comparison
from fidgpt.graph.difference.differ import changes_of
from fidgpt.graph.storage.equality import equal

from .parts import Outer, Part, Wide, Width, holding, pair


def block(rng: random.Random) -> fdl.Config[Any]:
    """A part that hears a width, and holds another."""
    inner = fdl.Config(Part, Width.new(), other=rng.choice([0.1, 0.2, 1000.5]))
    return fdl.Config(Wide, Width.new(), inner, rng.choice(["a", "b"]))


def graph(rng: random.Random) -> fdl.Config[Any]:
    """Blocks in a list, some of which are equal."""
    blocks = [block(rng) for _ in range(rng.randint(1, 5))]
    return fdl.Config(Outer, width=Width.new(4), child=blocks, other={"a": block(rng), "b": 1})


def change_values(rng: random.Random, cfg: Any) -> None:
    """Other plain values, in some places; two blocks may change places by it."""
    blocks = cfg.child
    for _ in range(rng.randint(0, 4)):
        one, other = rng.choice(blocks), rng.choice(blocks)
        match rng.randint(0, 4):
            case 0:
                one.other, other.other = other.other, one.other
            case 1:
                one.child.other = rng.choice([0.1, 0.2, -0.0, 0, False, float("nan"), (1, [2])])
            case 2:
                cfg.width = rng.choice([4, 5])
            case 3:
                one.child.other = None  # the default
                other.child.other = 1000.5
            case _:
                cfg.other["b"] = rng.choice([1, 2])


def told(changes: Any) -> list[str]:
    return [f"{change!s} {getattr(change, 'heard_by', ())}" for change in changes]


@pytest.mark.parametrize("seed", range(60))
def test_it_finds_what_a_full_comparison_finds(seed: int) -> None:
    rng = random.Random(seed)
    old = graph(rng)
    new = clone(old)
    change_values(rng, new)
    found = plain_changes(old, new)
    full = changes_of(Comparison(old, new, whole=False))
    assert found is None or told(found) == told(full)
    assert told(diff(old, new)) == told(full)
    assert equal(old, new) is (full == [])


def test_plain_values_need_no_full_comparison() -> None:
    rng = random.Random(0)
    old = graph(rng)
    new = clone(old)
    new.width = 5
    new.child[0].child.other = 7.5
    assert told(plain_changes(old, new) or []) == told(
        changes_of(Comparison(old, new, whole=False))
    )


def test_what_differs_in_more_than_values_is_left_to_a_full_comparison() -> None:
    shared = fdl.Config(Part, 1)
    old = fdl.Config(pair, shared, shared)
    assert plain_changes(old, fdl.Config(pair, clone(shared), clone(shared))) is None
    assert plain_changes(old, fdl.Config(pair, shared, 1)) is None
    assert plain_changes(fdl.Config(pair, [shared]), fdl.Config(pair, [])) is None
    assert plain_changes(fdl.Config(pair, 1), fdl.Config(holding, 1)) is None
    items = [fdl.Config(Part, width) for width in (1, 2)]
    swapped = fdl.Config(pair, [clone(item) for item in items[::-1]])
    assert plain_changes(fdl.Config(pair, items), swapped) is None


def test_a_quantity_that_nobody_says_is_still_told() -> None:
    old, new = (fdl.Config(Outer, child=fdl.Config(Part, Width.new())) for _ in range(2))
    with pytest.raises(ConfigErrors, match="Width"):
        diff(old, new)
