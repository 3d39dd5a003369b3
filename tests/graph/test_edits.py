"""Edits of values: what each operation changes, and that an error changes nothing."""

from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import bind, build, find_parameter
from fidgpt.graph.edits import Edit, change_by, delete, set_text, set_value

from .edited import Holder, Settings, graph, refused
from .parts import (
    Depth,
    Outer,
    Part,
    Rate,
    Square,
    Width,
    annotated,
    double,
    pair,
    positional,
    scaled,
)


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
        assert "first is the part Square" in refused(cfg, set_value, "first", 3)
        assert "is a tuple" in refused(fdl.Config(pair, (1, 2)), set_text, "first[*]", "3")

    @pytest.mark.parametrize(
        ("before", "after"), [(0.0, "-0.0"), ([1, 2], "[1, 2.0]"), ({"a": (True,)}, "{a: (1,)}")]
    )
    def test_what_is_equal_and_of_another_kind_is_a_change(self, before: Any, after: str) -> None:
        cfg = fdl.Config(pair, before)
        assert len(set_text(cfg, "first", after)) == 1
        assert set_text(cfg, "first", after) == []

    def test_each_place_gets_its_own_list(self) -> None:
        cfg = fdl.Config(pair, fdl.Config(annotated), fdl.Config(annotated))
        set_text(cfg, "**.by_name", "{a: 1}")
        assert cfg.first.by_name == {"a": 1}
        assert cfg.first.by_name is not cfg.second.by_name

    def test_a_formula(self) -> None:
        cfg = graph()
        set_text(cfg, "child[*].depth", "{width} // 2")
        assert bind(cfg).child[2].depth.values == {"width": 8}
        message = refused(cfg, set_text, "width", "{width} * 2")
        assert message.endswith("change its present value, write for example width*=2.")

    def test_a_quantity_by_its_tag(self) -> None:
        cfg = graph()
        assert set_text(cfg, Width, "16") == [Edit("width", 8, 16)]
        assert build(cfg).child[0]().width == 16
        only_inherited = fdl.Config(pair, fdl.Config(Part, width=Width.new()), fdl.Config(Square))
        assert len(set_text(only_inherited, Width, "3")) == 1
        assert refused(cfg, set_text, Depth, "3").endswith("There are InnerWidth, Rate, Width.")

    def test_of_a_default_factory(self) -> None:
        cfg = fdl.Config(Holder)
        assert set_text(cfg, "settings.inner.width", "7")[0].path == "settings.inner.width"
        set_text(cfg, "settings.depth", "3")
        assert build(cfg).settings.depth == 3
        assert build(cfg).settings.inner.width == 7
        assert Holder().settings.depth == 2
        assert type(cfg.settings) is fdl.Config
        factory = fdl.Partial(Holder)
        set_text(factory, "settings.depth", "3")
        assert type(factory.settings) is fdl.ArgFactory
        message = refused(fdl.Config(Holder), set_text, "settings.depht", "3")
        assert message == "settings (Settings) has no parameter 'depht'. Did you mean depth?"
        assert "is not set" in refused(fdl.Config(Settings), set_text, "names[0]", "x")

    def test_two_places_in_such_a_default(self) -> None:
        cfg = fdl.Config(Holder)
        depth, width = (
            find_parameter(cfg, "settings.depth"),
            find_parameter(cfg, "settings.inner.width"),
        )
        depth.set(3)
        width.set(4)
        assert (build(cfg).settings.depth, build(cfg).settings.inner.width) == (3, 4)

    def test_looking_at_such_a_default_changes_nothing(self) -> None:
        cfg = fdl.Config(Holder)
        assert find_parameter(cfg, "settings.depth").value is fdl.NO_VALUE
        refused(cfg, set_text, "settings.depth", "x")
        assert fdl.ordered_arguments(cfg) == {}


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

    def test_by_another_value(self) -> None:
        cfg = fdl.Config(Outer, width=3, depth=4)
        change_by(cfg, "depth", "*", "{width}")
        assert build(cfg).depth == 12

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

    def test_of_a_tag_that_only_defaults_set(self) -> None:
        cfg = fdl.Config(Outer)
        fdl.add_tag(cfg, "rate", Rate)
        cfg.rate = 0.25
        del cfg.rate
        assert change_by(cfg, Rate, "+", "0.5")[0].after == 0.5

    @pytest.mark.parametrize(
        ("path", "sign", "text", "message"),
        [
            ("depth", "*", "0.3", "depth*=0.3: 3 * 0.3 is 0.8999999999999999, and it takes int."),
            ("child", "*", "2", "child*=2: it is the part Square, not a number."),
            ("other", "+", "1", "other+=1: it is 'x' (str), not a number."),
            ("depth", "*", "x", "depth*=x: it is not arithmetic that a config can do: x is not "),
            ("depth", "+", "", "depth+=: it is not arithmetic that a config can do: "),
            ("rate", "*", "1e308*10", "rate*=1e308*10: it is too large a number."),
        ],
    )
    def test_mistakes(self, path: str, sign: str, text: str, message: str) -> None:
        cfg = fdl.Config(Outer, depth=3, child=fdl.Config(Square), other="x")
        assert refused(cfg, change_by, path, sign, text).startswith(message)

    def test_what_has_no_value(self) -> None:
        cfg = fdl.Config(Part)
        assert refused(cfg, change_by, "width", "*", "2").endswith("it has no value that could be "
                                                                   "changed.")  # fmt: skip


class TestDelete:
    def test_back_to_the_default_or_inherited_again(self) -> None:
        cfg = graph()
        cfg.child[0].width = 5
        edits = delete(cfg, "child[0:2].width")
        assert edits == [Edit("child[0].width", 5, fdl.NO_VALUE)]
        assert build(cfg).child[0]().width == 8
        delete(cfg, "child[1].depth")
        assert build(cfg).child[1]().depth == 0

    def test_entries_of_dicts_and_unnamed_arguments(self) -> None:
        cfg = fdl.Config(pair, {"a": 1, "b": 2}, fdl.Config(positional, 1))
        delete(cfg, "first.a")
        delete(cfg, "second.width")
        assert cfg.first == {"b": 2}
        assert fdl.ordered_arguments(cfg.second) == {}
        inheriting = fdl.Config(Outer, width=Width.new(2), child=[Width.new(5)])
        delete(inheriting, "child[0]")
        assert build(inheriting).child == [2]

    def test_an_item_of_a_list_stays(self) -> None:
        message = refused(graph(), delete, "child[0]")
        assert message == ("child[0] is an item of a list, and has no default: set child whole.")
