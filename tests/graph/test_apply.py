"""`apply`, patches and `merge`: differences as data, on graphs with sharing."""

import json
import random
from typing import Any

import fiddle as fdl
import pytest
from fiddling import apply_to_any

from fidgpt import configs, fiddlers
from fidgpt.graph import ConfigError, clone, diff, dump, fingerprint
from fidgpt.graph.difference.merging import merge
from fidgpt.graph.difference.patches import apply, apply_patch, dump_patch

from . import parts
from .parts import (
    Outer,
    Part,
    Rate,
    Square,
    Wide,
    Width,
    holding,
    keywords,
    pair,
    positional,
    product,
)
from .test_diff_whole import change_something, random_graph

ALLOWED = (parts.__name__,)


def assert_becomes(old: Any, new: Any) -> None:
    """The difference makes the one of the other, in memory and through a text."""
    before = dump(old)
    for made in (
        apply(old, diff(old, new)),
        apply_patch(old, dump_patch((old, new)), allowed=ALLOWED),
    ):
        assert fingerprint(made) == fingerprint(new)
        assert json.loads(dump(made)) == json.loads(dump(new))  # dicts may be in another order
    assert dump(old) == before


@pytest.mark.parametrize("seed", range(200))
def test_the_difference_of_random_graphs_makes_one_of_the_other(seed: int) -> None:
    rng = random.Random(seed)
    old = random_graph(rng, num_parts=rng.randint(1, 9))
    new = clone(old) if seed % 2 else random_graph(rng, num_parts=rng.randint(1, 9))
    for _ in range(rng.randint(1, 4)):
        held = [new, new.child, new.other]
        change_something(rng, rng.choice([one for one in held if isinstance(one, fdl.Buildable)]))
    assert_becomes(old, new)


@pytest.mark.parametrize("name", fiddlers.__all__)
def test_the_difference_that_a_fiddler_makes(name: str) -> None:
    old, new = configs.gpt2_124m(), configs.gpt2_124m()
    apply_to_any(new, name)
    assert_becomes(old, new)
    assert_becomes(new, old)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (fdl.Config(positional, 1), fdl.Config(positional, 2, depth=3)),
        (fdl.Config(product, 1, 2), fdl.Config(product, 1, 2, 3)),
        (fdl.Config(pair, {"a": 1, "b": [1]}), fdl.Config(pair, {"b": [2], "c": None})),
        (fdl.Config(pair, (1, fdl.Config(Square))), fdl.Config(pair, (2, fdl.Config(Square, 2)))),
        (fdl.Config(pair, Square, 1.0), fdl.Config(pair, Wide, 1)),
        (fdl.Config(pair, 1), fdl.Partial(pair, 1)),
        (fdl.Config(Part, 1, child=2), fdl.Config(Square, 1)),
        (fdl.Config(pair, {1: 1, "a": [1]}), fdl.Config(pair, {1: 2, "a": fdl.Config(Square)})),
        (fdl.Config(pair, {"keep": "x"}), fdl.Config(pair, {"part": "x", "like": {"keep": "y"}})),
        (fdl.Config(holding, [Width.new(1)]), fdl.Config(holding, [Width.new(), Rate.new(1.0)])),
    ],
    ids=range(10),
)
def test_everything_that_a_part_may_hold(old: Any, new: Any) -> None:
    roots = [fdl.Config(Outer, width=Width.new(5), child=one) for one in (old, new)]
    assert_becomes(*roots)
    assert_becomes(*roots[::-1])


def test_a_list_in_two_places_changes_in_one() -> None:
    items = [1, 2]
    assert_becomes(fdl.Config(pair, items, items), fdl.Config(pair, items, [1, 3]))


def test_another_graph_takes_a_difference_too() -> None:
    old = fdl.Config(Outer, width=1, child=fdl.Config(Square, 1))
    new = fdl.Config(Outer, width=1, child=fdl.Config(Square, 2), other=fdl.Config(Wide, 3))
    third = fdl.Config(Outer, width=7, child=fdl.Config(Square, 1))
    made = apply(third, diff(old, new))
    assert (made.width, made.child.width, made.other.width) == (7, 2, 3)
    assert third.child.width == 1


def test_a_place_that_is_missing_or_holds_something_else_is_named() -> None:
    old = fdl.Config(Outer, width=1, child=fdl.Config(Square, 1))
    new = fdl.Config(Outer, width=2, child=fdl.Config(Square, 2))
    text = dump_patch((old, new))
    with pytest.raises(ConfigError) as caught:
        apply_patch(fdl.Config(Outer, width=5, child=None), text, allowed=ALLOWED)
    assert str(caught.value).split("\n\n") == [
        "width: it was 1 when the difference was taken, and is 5.",
        "child.width: there is no such place in this graph.",
    ]


@pytest.mark.parametrize("seed", range(10))
def test_random_damage_to_a_patch_ends_in_a_config_error_or_in_a_graph(seed: int) -> None:
    from .test_file_fuzz import mutated

    chance = random.Random(seed)
    old, new = parts.whole_graph(), parts.whole_graph()
    new.child[1].other["yes"] = fdl.Config(Square)
    new.width = 9
    new.other = [new.child[0], fdl.Config(pair, Square)]
    original = json.loads(dump_patch((old, new)))
    for _ in range(20):
        try:
            apply_patch(old, mutated(original, chance), allowed=ALLOWED)
        except ConfigError as error:
            assert len(str(error)) < 3000


def test_what_two_people_changed_is_merged() -> None:
    shared = fdl.Config(Square, 1)
    base = fdl.Config(Outer, width=1, child=[shared, fdl.Config(Part, 1)], other=shared)
    ours, theirs = clone(base), clone(base)
    ours.width = 2
    ours.child[0] = clone(ours.other)  # untied
    theirs.child[1].child = fdl.Config(Wide, 3)
    theirs.rate = 0.5
    both = merge(base, ours, theirs)
    assert (both.width, both.rate, both.child[1].child.width) == (2, 0.5, 3)
    assert both.child[0] is not both.other
    assert fingerprint(merge(base, theirs, ours)) == fingerprint(both)
    assert fingerprint(merge(base, ours, base)) == fingerprint(ours)
    assert fingerprint(merge(base, ours, clone(ours))) == fingerprint(ours)


def test_conflicts_are_named_with_both_values() -> None:
    base = fdl.Config(Outer, width=1, child=fdl.Config(Part, 1), other=[1, 2])
    ours, theirs = clone(base), clone(base)
    ours.width, theirs.width = 2, 3
    ours.child.width = 5
    theirs.child = None
    ours.other[0] = 7
    theirs.other.append(3)
    with pytest.raises(ConfigError) as caught:
        merge(base, ours, theirs)
    assert str(caught.value).split("\n\n") == [
        "width: ours is 2, and theirs is 3.",
        "other[0]: ours is 7, and theirs is [1, 2, 3] at other.",
        "child.width: ours is 5, and theirs is None at child.",
    ]


def test_to_take_away_is_not_to_say_none() -> None:
    base = fdl.Config(Outer, width=1, depth=2)
    ours, theirs = clone(base), clone(base)
    del ours.depth
    theirs.depth = None  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError, match="^depth: ours is not set, and theirs is None.$"):
        merge(base, ours, theirs)
    assert "depth" not in merge(base, ours, clone(ours)).__arguments__


def test_a_list_that_two_changed_is_told_by_the_places_of_its_parts() -> None:
    base = fdl.Config(Outer, child=[fdl.Config(Part, width=1), fdl.Config(Part, width=2)])
    ours, theirs = clone(base), clone(base)
    ours.child.append(fdl.Config(Part, width=3))
    theirs.child.insert(0, fdl.Config(Part, width=4))
    with pytest.raises(ConfigError) as caught:
        merge(base, ours, theirs)
    assert str(caught.value) == (
        "child: ours is [child[0], child[1], another part], "
        "and theirs is [another part, child[0], child[1]]."
    )


def test_an_argument_called_part_is_no_part_of_a_patch() -> None:
    base = fdl.Config(pair, 1, {"part": "x"})
    ours, theirs = clone(base), clone(base)
    ours.first = fdl.Config(keywords, part={"part": "a"})
    theirs.second = fdl.Config(keywords, part=fdl.Config(keywords, keep="b"))
    both = merge(base, ours, theirs)
    assert (both.first, both.second) == (ours.first, theirs.second)


def test_a_patch_that_says_a_place_twice_is_refused() -> None:
    text = dump_patch((fdl.Config(Outer, width=1), fdl.Config(Outer, width=2)))
    twice = text.replace('"changes": {', '"changes": {"width": {"old": 1, "new": 3},')
    with pytest.raises(ConfigError, match="the patch: it has 'width' twice"):
        apply_patch(fdl.Config(Outer, width=1), twice, allowed=ALLOWED)


def test_what_another_call_does_not_take_is_named() -> None:
    base = fdl.Config(Outer, width=1, child=fdl.Config(Part, 1))
    ours, theirs = clone(base), clone(base)
    fdl.update_callable(ours.child, Square)
    theirs.child.other = 5
    for one, other in ((ours, theirs), (theirs, ours)):
        with pytest.raises(ConfigError, match="^child.other: Square has no parameter 'other'.$"):
            merge(base, one, other)
    with pytest.raises(
        ConfigError, match="^child: .*:Square does not take all arguments that are set there"
    ):
        apply(theirs, diff(base, ours))
