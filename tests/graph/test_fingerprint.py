"""The fingerprint: the same for the same graph however it was made, and for no other."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
from forked import Python, python_path

from fidgpt.graph import bind, clone, dump, equal, fingerprint, load
from fidgpt.graph.formulas import make_formula

from . import parts
from .parts import Depth, Outer, Part, Rate, Wide, Width, double, keywords, pair, scaled

ALLOWED = (parts.__name__,)


def graph() -> fdl.Config[Outer]:
    shared = fdl.Config(Part, width=Width.new())
    return fdl.Config(
        Outer,
        width=Width.new(3),
        depth=Depth.new(fdl.Config(double, Width.new())),
        rate=Rate.new(),
        child=[shared, fdl.Partial(Part, width=Depth.new(), child=shared)],
        other={"a": (1, "x", None, True)},
    )


def test_it_is_that_of_the_bound_graph() -> None:
    assert len(fingerprint(graph())) == 64
    assert fingerprint(graph()) == fingerprint(bind(graph())) == fingerprint(clone(graph()))
    cfg = graph()  # values set, inherited and default are the same
    cfg.child[0].width = 3
    cfg.rate = 0.0
    assert fingerprint(cfg) == fingerprint(graph())


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a value": lambda cfg: setattr(cfg, "width", 4),
    "an int to a float": lambda cfg: setattr(cfg, "width", 3.0),
    "True to 1": lambda cfg: cfg.other.update(a=(1, "x", None, 1)),
    "a default": lambda cfg: setattr(cfg, "rate", 0.1),
    "sharing": lambda cfg: cfg.child.__setitem__(0, clone(cfg.child[0])),
    "a tag": lambda cfg: fdl.add_tag(cfg.child[0], "other", Rate),
    "what is called": lambda cfg: fdl.update_callable(cfg.child[1], Wide),
    "how it is called": lambda cfg: cfg.child.__setitem__(1, fdl.cast(fdl.Config, cfg.child[1])),
    "the order of a list": lambda cfg: cfg.child.reverse(),
    "a computed value to its result": lambda cfg: setattr(cfg, "depth", 6),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_changes_with(change: Callable[[Any], Any]) -> None:
    cfg = graph()
    change(cfg)
    assert fingerprint(cfg) != fingerprint(graph())


def test_a_formula_counts_by_what_it_looks_up() -> None:
    cfg = fdl.Config(Outer, width=3, depth=4)
    cfg.rate = make_formula(cfg, "{width} * 2")
    cfg.child = fdl.Config(Part, make_formula(cfg, "{rate} + 1"))
    before = fingerprint(cfg)
    assert fingerprint(bind(cfg)) == before == fingerprint(load(dump(cfg), allowed=ALLOWED))
    cfg.width = 4
    assert fingerprint(bind(cfg)) == fingerprint(cfg) != before


def test_sharing_inside_a_block_does_not_depend_on_what_is_around() -> None:
    def block() -> fdl.Config[Any]:
        own = fdl.Config(Part, 1)
        return fdl.Config(pair, own, [own])

    cfg = fdl.Config(pair, block(), block())
    assert equal(cfg, clone(cfg))
    cfg.second.second[0] = cfg.first.first
    assert not equal(cfg, fdl.Config(pair, block(), block()))
    assert fingerprint(cfg) != fingerprint(fdl.Config(pair, block(), block()))
    one, halves = fdl.Config(scaled, 8), [fdl.Config(scaled, 8) for _ in range(2)]
    assert fingerprint(fdl.Config(pair, one, one)) != fingerprint(fdl.Config(pair, *halves))


def test_only_lists_and_positional_arguments_have_an_order() -> None:
    one, other = fdl.Config(keywords, a=1, b=2), fdl.Config(keywords, b=2, a=1)
    assert fingerprint(one) == fingerprint(other)
    assert equal(fdl.Config(pair, {"a": 1, "b": one}), fdl.Config(pair, {"b": other, "a": 1}))
    assert equal(fdl.Config(pair, {1: "a", 2: "b"}), fdl.Config(pair, {2: "b", 1: "a"}))
    for value, different in (({1: 0}, {"1": 0}), ({1: 0}, {True: 0}), (0.0, -0.0), ([1], [True])):
        assert not equal(fdl.Config(pair, value), fdl.Config(pair, different))


SCRIPT = """
from fidgpt.configs import base
from fidgpt.graph import draw, dump, fingerprint
from tests.graph.parts import whole_graph
text = [fingerprint(whole_graph()), dump(whole_graph()), draw(base()).source]
"""


@pytest.mark.slow
def test_it_the_file_and_the_drawing_are_the_same_in_every_process(
    tmp_path: Path,
) -> None:
    here: dict[str, Any] = {}
    exec(SCRIPT, here)
    (tmp_path / "script.py").write_text(f"{SCRIPT}\nprint(text)")
    variables = os.environ | {"PYTHONPATH": python_path(Path(__file__).parents[2])}
    there = Python(tmp_path / "script.py", output=tmp_path / "there", environment=variables)
    assert there.end(seconds=60) == 0 and there.output == f"{here['text']}\n", there.output
