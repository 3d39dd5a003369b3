"""Edits of values: what each operation changes, and that an error changes nothing."""

from collections.abc import Mapping
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import build
from fidgpt.graph.edits import Edit, change_by, delete, set_text, tie, untie, use

from . import parts
from .edited import PARTS, graph, refused, takes_function
from .parts import Outer, Part, Square, Wide, Width, annotated, double, pair, scaled


class TestSet:
    def test_at_every_place_and_reported(self) -> None:
        cfg = graph()
        edits = set_text(cfg, "child[1:3].depth", "2")
        assert edits == [Edit("child[1].depth", 1, 2)]
        assert [block.depth for block in cfg.child] == [0, 2, 2, 3]
        assert set_text(cfg, "child[0].rate", "0.5") == [Edit("child[0].rate", fdl.NO_VALUE, 0.5)]

    def test_nothing_changes_when_one_place_refuses(self) -> None:
        cfg = fdl.Config(pair, fdl.Config(Square), fdl.Config(Outer, rate=0.25))
        cfg.first.width = 1
        message = refused(cfg, set_text, "**.width", "wide")
        assert message == "first.width: 'wide' is not an int."
        assert "is a tuple" in refused(fdl.Config(pair, (1, 2)), set_text, "first[*]", "3")

    def test_a_quantity_by_its_tag(self) -> None:
        cfg = graph()
        assert set_text(cfg, Width, "16") == [Edit("width", 8, 16)]
        assert build(cfg).child[0]().width == 16
        only_inherited = fdl.Config(pair, fdl.Config(Part, width=Width.new()), fdl.Config(Square))
        assert len(set_text(only_inherited, Width, "3")) == 1


class TestRelative:
    def test_numbers_and_defaults(self) -> None:
        cfg = fdl.Config(annotated, whole=4, number=0.5)
        assert change_by(cfg, "whole", "*", "0.5") == [Edit("whole", 4, 2)]
        assert change_by(cfg, "number", "*", "1/2") == [Edit("number", 0.5, 0.25)]
        assert change_by(cfg, "whole", "+", "1e1")[0].after == 12
        assert change_by(cfg, "whole", "-", "2")[0].after == 10
        untouched = fdl.Config(Outer)
        assert change_by(untouched, "rate", "+", "1") == [Edit("rate", fdl.NO_VALUE, 1.0)]
        assert type(untouched.rate) is float
        loose = fdl.Config(pair, 3, [2])
        assert change_by(loose, "first", "*", "2.0")[0].after == 6
        assert type(loose.first) is int
        assert change_by(loose, "second[0]", "+", "1")[0].after == 3

    def test_an_inherited_value_becomes_a_formula(self) -> None:
        cfg = graph()
        change_by(cfg, "child[1].width", "*", "2")
        assert [build(cfg).child[i]().width for i in range(3)] == [8, 16, 8]
        cfg.width = 10
        assert build(cfg).child[1]().width == 20
        change_by(cfg, "child[1].width", "+", "1")
        assert cfg.child[1].width.text == "({@Width} * 2) + 1"
        assert build(cfg).child[1]().width == 21

    def test_what_is_computed_becomes_a_formula_of_it(self) -> None:
        cfg = fdl.Config(Outer, width=3, depth=fdl.Config(double, number=5))
        change_by(cfg, "depth", "-", "{width} + 1")
        assert build(cfg).depth == 6
        cfg.width = 0
        assert build(cfg).depth == 9

    def test_of_a_quantity(self) -> None:
        cfg = graph()
        cfg.child[0].width = fdl.Config(scaled, number=Width.new(), ratio=0.5)
        cfg.child[1].width = 6
        edits = change_by(cfg, Width, "*", "2")
        assert [edit.path for edit in edits] == ["width", "child[1].width"]
        assert [build(cfg).child[i]().width for i in range(3)] == [8, 12, 16]

    def test_what_follows_a_selected_place_is_not_changed_twice(self) -> None:
        cfg = graph()
        edits = change_by(cfg, "**.width", "*", "2")
        assert [edit.path for edit in edits] == ["width", "child[0].child.width"]
        assert build(cfg).child[3].keywords["width"] == 16
        named = fdl.Config(pair, fdl.Config(Outer, depth=2), fdl.Config(Outer))
        set_text(named, "second.depth", "{first.depth} + 1")
        change_by(named, "**.depth", "*", "5")
        assert [one.depth for one in build(named)] == [10, 11]


class TestDelete:
    def test_back_to_the_default_or_inherited_again(self) -> None:
        cfg = graph()
        cfg.child[0].width = 5
        edits = delete(cfg, "child[0:2].width")
        assert edits == [Edit("child[0].width", 5, fdl.NO_VALUE)]
        assert build(cfg).child[0]().width == 8
        delete(cfg, "child[1].depth")
        assert build(cfg).child[1]().depth == 0


def test_a_part_of_its_own_for_one_that_was_shared_is_a_change() -> None:
    cfg = graph()
    changed = set_text(cfg, "child[0].child", "Square(width=4)", parts=PARTS)
    assert [one.path for one in changed] == ["child[0].child"]
    assert cfg.child[0].child is not cfg.child[1].child
    assert use(cfg, "child[1].child", "Square(width=4)", parts=PARTS) == []
    assert cfg.child[1].child is cfg.child[2].child


def by_shape(shapes: Mapping[str, parts.Shape] | None = None) -> None:
    """Holds shapes by name."""


class TestSetParts:
    def test_a_part_by_name_with_parts_inside(self) -> None:
        cfg = fdl.Config(Outer)
        set_text(
            cfg, "child", "Part(width=2**3, child=Part(1, other=Square(width=2)))", parts=PARTS
        )
        built = build(cfg)
        assert (built.child.width, built.child.child.other.width) == (8, 2)

    def test_its_kind_is_that_of_what_was_there_or_fresh_in_a_factory(self) -> None:
        cfg = graph()
        set_text(cfg, "child[3].other", "Wide(width=1)", parts=PARTS)
        assert type(cfg.child[3].other) is fdl.ArgFactory
        set_text(cfg, "child[0].other", "Square", parts=PARTS)
        assert type(cfg.child[0].other) is fdl.ArgFactory
        set_text(cfg, "child[*].child", "Square()", parts=PARTS)
        assert type(cfg.child[0].child) is fdl.Config
        assert cfg.child[0].child is not cfg.child[1].child
        functions = fdl.Config(annotated)
        set_text(functions, "function", "scaled(ratio=2)", parts=PARTS)
        assert type(functions.function) is fdl.Partial

    def test_a_function_itself_where_one_is_wanted(self) -> None:
        cfg = fdl.Config(takes_function)
        set_text(cfg, "call", "scaled", parts=PARTS)
        assert cfg.call is scaled
        set_text(cfg, "call", "scaled(ratio=2.0)", parts=PARTS)
        assert build(cfg)(4) == 8

    def test_a_required_parameter_inherits_as_its_namesakes_do(self) -> None:
        cfg = fdl.Config(Outer, width=Width.new(8), child=fdl.Config(Part, width=Width.new()))
        set_text(cfg, "other", "Part(child=Part())", parts=PARTS)
        assert build(cfg).other.child.width == 8
        set_text(cfg, "child", "Wide", parts=PARTS)
        assert build(cfg).child.width == 8

    def test_a_word_is_a_text_where_one_may_stand(self) -> None:
        cfg = fdl.Config(pair, fdl.Config(annotated))
        set_text(cfg, "first.either", "Square", parts=PARTS)
        set_text(cfg, "second", "a.b", parts=PARTS)
        assert (cfg.first.either, cfg.second) == ("Square", "a.b")
        set_text(cfg, "second", "Square", parts=PARTS)
        assert fdl.get_callable(cfg.second) is Square

    def test_a_class_that_an_annotation_asks_for_needs_no_other_name(self) -> None:
        others = {"Square": scaled, "Part": Part}
        cfg = fdl.Config(annotated)
        set_text(cfg, "square", "Square(width=4)", parts=others)
        assert fdl.get_callable(cfg.square) is Square
        use(cfg, "square", "Square(width=5)", parts={"Part": Part})
        assert cfg.square.width == 5
        message = refused(fdl.Config(annotated), set_text, "square", "Part", parts={"Part": Part})
        assert message.endswith("Name a component that fits, such as Square.")

    def test_a_dict_of_parts(self) -> None:
        cfg = fdl.Config(by_shape)
        set_text(cfg, "shapes", "{a: Square(2), 'b, c': Square(width=3)}", parts=PARTS)
        assert {key: one.width for key, one in cfg.shapes.items()} == {"a": 2, "b, c": 3}
        message = refused(cfg, set_text, "shapes", "{a: Part(1)}", parts=PARTS)
        assert message == (
            "shapes['a']: 'Part(1)' is not a Shape. Name a component that fits, such as Square.\n"
            "  Shape: What has an area.\n"
            "  It is called as area(), and Part has no area."
        )
        message = refused(cfg, set_text, "shapes", "Square(2)", parts=PARTS)
        assert "Write {name: ...}. Name a component that fits, such as Square." in message


class TestUse:
    def test_another_part_keeps_what_both_have(self) -> None:
        cfg = graph()
        edits = use(cfg, "child[3].other", "Wide(child=Square(width=9))", parts=PARTS)
        new = cfg.child[3].other
        assert [edit.path for edit in edits] == ["child[3].other"]
        assert (type(new), fdl.get_callable(new)) == (fdl.ArgFactory, Wide)
        assert fdl.get_tags(new, "width") == {parts.InnerWidth}
        assert build(cfg).child[3]().other.child.width == 9

    @pytest.mark.parametrize("selector", ["child[1].child", "child[*].child", ":Square"])
    def test_a_shared_part_stays_one(self, selector: str) -> None:
        cfg = graph()
        edits = use(cfg, selector, "Outer(depth=2)", parts=PARTS)
        assert len(edits) == 5
        new = cfg.child[0].child
        assert all(block.child is new for block in cfg.child)
        assert cfg.child[3].other.child is new
        assert fdl.ordered_arguments(new) == {"width": 4, "depth": 2}


class TestTie:
    def test_tie_and_untie(self) -> None:
        cfg = fdl.Config(pair, fdl.Config(Square, 1), fdl.Config(Part, 1, child=fdl.Config(Square)))
        edits = tie(cfg, "second.child", "first")
        assert cfg.second.child is cfg.first
        assert [edit.path for edit in edits] == ["second.child"]
        assert tie(cfg, "second.child", "first") == []
        untie(cfg, "second.child")
        assert cfg.second.child is not cfg.first
        assert cfg.second.child.width == 1


def plus(root: Any, selector: str, text: str, sign: str = "+") -> list[Edit]:
    return change_by(root, selector, sign, text, parts=PARTS)


@pytest.mark.parametrize(
    ("root", "name", "text", "expected"),
    [
        (fdl.Config(annotated, names=["a"]), "names", "[b, 'c d']", ["a", "b", "c d"]),
        (fdl.Config(annotated, names=("a",)), "names", "b, c", ("a", "b", "c")),
        (fdl.Config(annotated, by_name={"a": 1}), "by_name", "{b: 1e3}", {"a": 1, "b": 1000}),
        (fdl.Config(Outer, child=[1]), "child", "[2, [3]]", [1, 2, [3]]),
    ],
)
def test_items_come_behind(root: Any, name: str, text: str, expected: Any) -> None:
    (edit,) = plus(root, name, text)
    assert getattr(root, name.partition("[")[0]) == expected
    assert edit.path == name
    assert edit.after != edit.before


def test_added_parts_are_new_for_each_place() -> None:
    first = fdl.Config(Square, width=1)
    root = fdl.Config(Outer, child=[first], other=fdl.Config(Outer, child=[first]))
    plus(root, "**.child", "[Square(width={rate})]")
    assert root.child[0] is root.other.child[0] is first
    assert root.child[1] is not root.other.child[1]
    inside = fdl.Partial(Outer, child=[])
    plus(inside, "child", "[Square]")
    assert type(inside.child[0]) is fdl.ArgFactory
