"""The outline of a graph: each shared part once, and the source of each inherited value."""

import fiddle as fdl

from fidgpt.graph import bind, outline
from fidgpt.graph.edits import set_text

from .parts import Depth, Outer, Part, Square, Width, double, pair, product


def test_every_argument_has_a_line() -> None:
    shared = fdl.Config(Part, width=Width.new(), other="text")
    factory = fdl.ArgFactory(Part, width=2, child=shared)
    cfg = fdl.Config(
        Outer,
        width=Width.new(3),
        depth=Depth.new(fdl.Config(double, Width.new())),
        child=[shared, {"a": 1, "b c": fdl.Partial(Outer, depth=Depth.new(), child=factory)}],
        other=[1, (2, Square), {}],
    )
    assert outline(cfg).splitlines() == [
        "Outer",
        "  width: 3",
        "  depth: &depth double",
        "    number: 3  <- width",
        "  child:",
        "    [0]: &child[0] Part",
        "      width: 3  <- width",
        "      other: 'text'",
        "    [1]:",
        "      a: 1",
        "      b c: Outer (partial)",
        "        depth: *depth",
        "        child: Part (new at every call)",
        "          width: 2",
        "          child: *child[0]",
        "  other: [1, (2, <class 'tests.graph.parts.Square'>), {}]",
    ]


def test_a_shared_part_is_marked_once_and_then_named() -> None:
    shared = fdl.Config(Part, width=1)
    text = outline(fdl.Config(pair, [shared, shared], fdl.Config(Part, 2, child=shared)))
    assert text.count("width: 1") == 1
    assert text.count("&first[0] ") == 1
    assert text.count("*first[0]\n") == 2


def test_a_part_held_once_has_no_mark() -> None:
    text = outline(fdl.Config(pair, fdl.Config(Part, width=1), fdl.Config(Part, width=1)))
    assert "&" not in text
    assert "*" not in text


def test_a_value_inherited_before_its_line_has_the_name_of_that() -> None:
    heir = fdl.Config(Part, width=Width.new())
    source = Width.new(fdl.Config(double, 4))
    lines = outline(fdl.Config(pair, fdl.Config(Outer, child=heir), source)).splitlines()
    assert "      width: *second" in lines
    assert "  second: &second double" in lines


def test_quantities_in_a_list_read_like_arguments() -> None:
    cfg = fdl.Config(Outer, width=Width.new(3), child=[Width.new(), Width.new(5)])
    assert outline(cfg).splitlines()[2:] == ["  child:", "    [0]: 3  <- width", "    [1]: 5"]


def test_a_formula_is_a_line() -> None:
    cfg = fdl.Config(Outer, width=3, child=fdl.Config(Part, width=Width.new()))
    fdl.add_tag(cfg, "width", Width)
    set_text(cfg, "depth", "{width} * 2")
    assert outline(cfg).splitlines()[2] == "  depth: {width} * 2"
    set_text(cfg, "width", "4 + {rate}")
    lines = outline(cfg).splitlines()
    assert lines[1] == "  width: &width 4 + {rate}"
    assert lines[4] == "    width: *width"


def test_unnamed_arguments_are_numbered() -> None:
    cfg = fdl.Config(Outer, width=Width.new(3), depth=fdl.Config(product, Width.new(), 2))
    assert outline(cfg).splitlines()[3:] == ["    0: 3  <- width", "    1: 2"]


def test_a_value_takes_one_line() -> None:
    class Tall:
        def __repr__(self) -> str:
            return "one\ntwo"

    assert outline(fdl.Config(pair, Tall())).splitlines() == ["pair", "  first: one two"]


def test_a_method_of_a_builtin_has_a_name() -> None:
    assert outline(fdl.Config(pair, "x".upper)) == "pair\n  first: builtins.str.upper\n"


def test_a_bound_graph_inherits_nothing() -> None:
    cfg = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, width=Width.new()))
    assert "<-" in outline(cfg)
    assert "<-" not in outline(bind(cfg))
    assert "    width: 3\n" in outline(bind(cfg))


def test_a_part_of_a_graph_shows_the_tags_that_nothing_sets() -> None:
    inner = fdl.Config(Part, width=Width.new(), child=[Depth.new(), Depth.new(2)])
    cfg = fdl.Config(Outer, width=Width.new(3), depth=Depth.new(4), child=inner)
    assert "      [0]: 4  <- depth" in outline(cfg).splitlines()
    assert outline(cfg.child).splitlines() == [
        "Part",
        "  width: ?  <- Width",
        "  child:",
        "    [0]: ?  <- Depth",
        "    [1]: 2",
    ]
