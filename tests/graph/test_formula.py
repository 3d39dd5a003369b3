"""Formulas: computed from what the graph holds when it is bound, in whatever order it was set."""

from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, bind, build
from fidgpt.graph.formulas import make_formula

from .parts import Depth, Outer, Part, Width, double, pair, scaled


def graph(text: str, **others: Any) -> fdl.Config[Outer]:
    """A graph whose child's width is a formula."""
    cfg = fdl.Config(Outer, width=Width.new(100), depth=Depth.new(3), **others)
    cfg.child = fdl.Config(Part)
    cfg.child.width = make_formula(cfg, text)
    return cfg


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("{width} / 10", 10),
        ("{ width }*{depth}", 300),
        ("-{depth} + max(1, {width}, 2)", 97),
        ("min({width}, {depth}) - round({width} / 3)", -30),
        ("int({width} / 3) * 1e1", 330),
        ("{@Width} + {Depth}", 103),
    ],
)
def test_what_a_formula_computes(text: str, result: int) -> None:
    width = build(graph(text)).child.width
    assert width == result
    assert type(width) is int


def test_a_formula_follows_later_changes() -> None:
    cfg = graph("{width} // 10")
    cfg.width = 50
    assert build(cfg).child.width == 5
    cfg.width = make_formula(cfg, "{depth} * 100")
    assert build(cfg).child.width == 30
    cfg.depth = fdl.Config(double, number=4)
    assert build(cfg).child.width == 80


def test_a_formula_is_inherited_and_inherits() -> None:
    cfg = fdl.Config(Outer, width=Width.new(100), child=fdl.Config(Outer, width=Width.new()))
    inner = cfg.child
    inner.child = fdl.Config(Part, width=Width.new())
    inner.width = make_formula(cfg, "{@Width} / 2")
    cfg.other = fdl.Partial(pair, fdl.ArgFactory(Part, width=Width.new()))
    built = build(cfg)
    assert (built.child.width, built.child.child.width) == (50, 50)
    assert type(built.child.child.width) is int
    assert built.other()[0].width == 100


@pytest.mark.parametrize("text", ["{{depth}}", "{ { depth } } * 2", "2 * {{@Width}}"])
def test_doubled_braces_are_told_to_be_single(text: str) -> None:
    """As templates and Python's format strings write them, in a file of overrides too."""
    name = "@Width" if "@" in text else "depth"
    with pytest.raises(ConfigError, match=rf"written in single braces: \{{{name}\}}, not \{{"):
        graph(text)


def test_a_circle_through_a_computed_number_is_an_error_without_internals() -> None:
    cfg = fdl.Config(Outer, width=Width.new(1), depth=fdl.Config(scaled, Width.new(), ratio=2.0))
    cfg.width = make_formula(cfg, "{depth} + 1")
    with pytest.raises(ConfigError, match=r"^width \(formula\) contains itself, at depth.num"):
        bind(cfg)
