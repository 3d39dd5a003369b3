"""A tag in a formula that no part around the formula says."""

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigErrors, bind
from fidgpt.graph.edits import set_text

from .parts import Depth, Outer, Part, Rate, Width


def graph() -> fdl.Config[Outer]:
    child = fdl.Config(Part, width=Width.new(3), child=fdl.Config(Part, width=Width.new()))
    return fdl.Config(Outer, child=child)


def mistakes(cfg: fdl.Config) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        bind(cfg)
    return caught.value.messages


def test_where_it_is_said_instead() -> None:
    cfg = graph()
    set_text(cfg, "depth", "{Width} + 1")
    assert mistakes(cfg) == [
        "depth is {Width} + 1, and no part around it says Width.\n"
        "  child.width says it for what is inside of child: write {child.width}."
    ]
    set_text(cfg, "depth", "{child.width} + 1")
    assert bind(cfg).depth.values == {"child.width": 3}


def test_it_is_what_the_formula_says_itself() -> None:
    cfg = graph()
    set_text(cfg, "child.width", "{Width} * 2")
    assert mistakes(cfg)[0] == (
        "child.width is {Width} * 2, and says Width itself: it cannot be computed from itself.\n"
        "  To change what it is now, write for example child.width*=2."
    )


def test_nobody_says_it_at_all() -> None:
    cfg = graph()
    fdl.add_tag(cfg, "rate", Rate)
    cfg.other = fdl.Config(Outer, rate=Rate.new())
    set_text(cfg, "depth", "{@Rate} * 2")
    assert mistakes(cfg) == [
        "depth is {@Rate} * 2, and no part around it says Rate.\n"
        "  No part of this graph does: write the path of a number in its place."
    ]


def test_parts_that_hear_it_beside_the_formula_are_told_apart() -> None:
    cfg = fdl.Config(Outer, child=fdl.Config(Part, width=Depth.new()))
    set_text(cfg, "rate", "{Depth} * 2")
    first, second = mistakes(cfg)
    assert first.startswith("rate is {Depth} * 2, and no part around it says Depth.")
    assert second.startswith("child.width hears Depth, and no part around it says Depth.\n  Say it")


def test_a_quantity_in_a_list_is_no_formula() -> None:
    cfg = fdl.Config(Outer, child=[Width.new()])
    assert "hears Width, and no part around it says Width.\n  Say it" in mistakes(cfg)[0]
