"""`apply`, patches and `merge`: differences as data, on graphs with sharing."""

import json
import random
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest
from small_models import apply_to_any

from fidgpt import configs, fiddlers, graph
from fidgpt.configs import debug

from . import namesakes, parts
from .parts import Outer, Part, Square, Wide, Width, holding, pair, positional, product
from .test_diff import change_something, random_graph

ALLOWED = (parts.__name__, namesakes.__name__)
LONG = pytest.mark.long


def assert_becomes(old: Any, new: Any) -> None:
    """Check that the difference makes the one of the other, in memory and through a text."""
    before = graph.dump(old)
    patched = graph.apply_patch(old, graph.dump_patch((old, new)), allowed=ALLOWED)
    for made in (graph.apply(old, graph.diff(old, new)), patched):
        assert graph.fingerprint(made) == graph.fingerprint(new)
        # Dicts may be in another order.
        assert json.loads(graph.dump(made)) == json.loads(graph.dump(new))
    assert graph.dump(old) == before
    is_same = graph.fingerprint(old) == graph.fingerprint(new)
    assert (graph.diff(old, new) == []) is is_same


@pytest.mark.parametrize("seed", range(40))
def test_the_difference_of_random_graphs_makes_one_of_the_other(seed: int) -> None:
    rng = random.Random(seed)
    old = random_graph(rng, num_parts=rng.randint(1, 9))
    new = graph.clone(old) if seed % 2 else random_graph(rng, num_parts=rng.randint(1, 9))
    for _ in range(rng.randint(1, 4)):
        held = [new, new.child, new.other]
        change_something(rng, rng.choice([one for one in held if isinstance(one, fdl.Buildable)]))
    assert_becomes(old, new)


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=LONG), pytest.param(2, marks=LONG)])
def test_the_difference_that_a_fiddler_makes(part: int) -> None:
    old = configs.gpt2_124m()
    for i, name in enumerate(fiddlers.__all__[part::3]):
        new = graph.clone(old)
        apply_to_any(new, name)
        assert_becomes(*((old, new) if i % 2 else (new, old)))


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
        (
            fdl.Config(holding, [Width.new(1)]),
            fdl.Config(holding, [Width.new(), parts.Rate.new(1.0)]),
        ),
        (fdl.Config(pair, *[[1, 2]] * 2), fdl.Config(pair, [1, 2], [1, 3])),
        (fdl.Config(Wide, Width.new(1)), fdl.Config(Wide, namesakes.Width.new(1))),
    ],
    ids=range(12),
)
def test_everything_that_a_node_may_hold(old: Any, new: Any) -> None:
    roots = [fdl.Config(Outer, width=Width.new(5), child=one) for one in (old, new)]
    assert_becomes(*roots)
    assert_becomes(*roots[::-1])


def messages(make: Callable[[], Any]) -> list[str]:
    with pytest.raises(graph.ConfigError) as caught:
        make()
    return str(caught.value).split("\n\n")


def test_places_that_are_missing_or_hold_something_else_are_named() -> None:
    old = fdl.Config(Outer, width=1, child=fdl.Config(Square, 1))
    new = fdl.Config(Outer, width=2, child=fdl.Config(Square, 2))
    text = graph.dump_patch((old, new))
    other = fdl.Config(Outer, width=5, child=None)
    near = fdl.Config(Outer, 1, 7, child=fdl.Config(Square, 1))
    made = graph.apply_patch(near, text, allowed=ALLOWED)
    assert (made.width, made.depth, made.child.width, near.child.width) == (2, 7, 2, 1)
    assert messages(lambda: graph.apply_patch(other, text, allowed=ALLOWED)) == [
        "width: it was 1 when the difference was taken, but is 5.",
        "child.width: there is no such path in this graph.",
    ]
    twice = text.replace('"changes": {', '"changes": {"width": {"old": 1, "new": 3},')
    assert "it has 'width' twice" in messages(lambda: graph.apply_patch(old, twice))[0]


def three(**arguments: Any) -> tuple[Any, Any, Any]:
    base = fdl.Config(Outer, **arguments)
    return base, graph.clone(base), graph.clone(base)


def test_two_changed_graphs_are_merged() -> None:
    shared = fdl.Config(Square, 1)
    base, ours, theirs = three(width=1, child=[shared, fdl.Config(Part, 1)], other=shared)
    ours.width = 2
    ours.child[0] = graph.clone(ours.other)  # untied
    theirs.child[1].child = fdl.Config(Wide, 3)
    theirs.rate = 0.5
    both = graph.merge(base, ours, theirs)
    assert (both.width, both.rate, both.child[1].child.width) == (2, 0.5, 3)
    assert both.child[0] is not both.other
    assert graph.fingerprint(graph.merge(base, theirs, ours)) == graph.fingerprint(both)
    assert graph.fingerprint(graph.merge(base, ours, base)) == graph.fingerprint(ours)
    assert graph.fingerprint(graph.merge(base, ours, graph.clone(ours))) == graph.fingerprint(ours)


def conflicts(base: Any, ours: Any, theirs: Any) -> list[str]:
    return messages(lambda: graph.merge(base, ours, theirs))


TAKEN = "So theirs cannot take what ours changed."


def test_conflicts_are_named_with_both_values() -> None:
    base, ours, theirs = three(width=1, child=fdl.Config(Part, 1), other=[1, 2])
    ours.width, theirs.width = 2, 3
    ours.child.width = 5
    theirs.child = None
    ours.other[0] = 7
    theirs.other.append(3)
    assert conflicts(base, ours, theirs) == [
        "width: ours is 2, and theirs is 3.",
        "child.width: there is no such path in this graph. " + TAKEN,
        "other: it had 2 entries when the difference was taken, but has 3 entries, so that [0] may "
        "be another: apply this difference before that change, or take it again. " + TAKEN,
    ]


def unrolled(**dropouts: float) -> Any:
    """Return the debug config with a block of its own for each layer, and dropouts of some."""
    cfg = debug()
    fiddlers.unroll(cfg)
    for name, value in dropouts.items():
        cfg.model.blocks[int(name[1:])].dropout = value
    return cfg


def edited(path: str, value: Any, cfg: Any = None) -> Any:
    cfg = debug() if cfg is None else cfg
    graph.find_parameter(cfg, f"model.blocks[0].{path}").write(value)
    return cfg


class TestCopiedItems:
    """A difference that made items like old ones knows when those have changed since."""

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            ("dropout", 0.2, "dropout: it was not set when the difference was taken, but is 0.2"),
            ("mlp", fdl.ArgFactory(Square), "mlp: it was a SwiGLU when"),
        ],
    )
    def test_a_change_of_the_old_item_conflicts(self, path: str, value: Any, message: str) -> None:
        text = graph.dump_patch((debug(), unrolled()))
        found = messages(lambda: graph.apply_patch(edited(path, value), text))[0]
        assert found.startswith(f"model.blocks[0].{message}")

    def test_other_changes_do_not(self) -> None:
        text = graph.dump_patch((debug(), unrolled()))
        first, second = (edited("attention.rope.theta", 5.0, cfg) for cfg in (debug(), unrolled()))
        first.model.hidden_dim = second.model.hidden_dim = 64
        assert graph.equal(graph.apply_patch(first, text), second)

    def test_a_merge_of_both_is_a_conflict(self) -> None:
        with pytest.raises(graph.ConfigErrors, match=r"blocks\[0\].dropout: it was .* is 0.2"):
            graph.merge(debug(), unrolled(), edited("dropout", 0.2))
