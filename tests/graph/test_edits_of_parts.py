"""Parts named in a text, put in the place of others, tied and untied."""

from collections.abc import Mapping
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, build
from fidgpt.graph.edits import set_text, tie, untie, use

from .edited import PARTS, graph, refused, takes_function
from .parts import (
    Color,
    InnerWidth,
    Outer,
    Part,
    Shape,
    Square,
    Wide,
    Width,
    annotated,
    holding,
    pair,
    scaled,
)


def by_shape(shapes: Mapping[str, Shape] | None = None) -> None:
    """Holds shapes by name."""


def several(shapes: tuple[Square, ...] = ()) -> None:
    """Holds shapes in a row."""


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

    def test_a_list_of_parts(self) -> None:
        cfg = fdl.Partial(annotated)
        set_text(cfg, "functions", "[Part(width=1), Wide(2),]", parts=PARTS)
        assert [fdl.get_callable(one) for one in cfg.functions] == [Part, Wide]
        loose = fdl.Config(pair, fdl.Partial(holding))
        set_text(loose, "first.items", "[Square(2), 5, a]", parts=PARTS)
        assert type(loose.first.items[0]) is fdl.ArgFactory
        assert loose.first.items[1:] == [5, "a"]
        message = refused(loose, set_text, "first.items", "[Sqare(2)]", parts=PARTS)
        assert message == ("first.items[0]: there is no part 'Sqare'. Did you mean Square?")

    def test_a_tuple_of_parts(self) -> None:
        cfg = fdl.Config(several)
        set_text(cfg, "shapes", "[Square(2), Square]", parts=PARTS)
        assert [one.width for one in cfg.shapes] == [2, 1]
        assert isinstance(cfg.shapes, tuple)
        set_text(cfg, "shapes", "Square(3), Square()", parts=PARTS)
        assert [one.width for one in cfg.shapes] == [3, 1]

    def test_a_class_that_an_annotation_asks_for_needs_no_other_name(self) -> None:
        others = {"Square": scaled, "Part": Part}
        cfg = fdl.Config(annotated)
        set_text(cfg, "square", "Square(width=4)", parts=others)
        assert fdl.get_callable(cfg.square) is Square
        use(cfg, "square", "Square(width=5)", parts={"Part": Part})
        assert cfg.square.width == 5
        message = refused(fdl.Config(annotated), set_text, "square", "Part", parts={"Part": Part})
        assert message.endswith("Name a part that fits, such as Square.")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("Sqare()", "square: there is no part 'Sqare'. Did you mean Square?"),
            ("Square(widht=1)", "square: Square has no argument 'widht'. Did you mean width?"),
            ("Square(width=x)", "square.width: 'x' is not an int."),
            ("Square(1, 2)", "square: Square takes 1 arguments without their names, and is given"),
            ("Square(1, width=2)", "square: Square is given width twice."),
            ("Squ.are()", "square: there is no part 'Squ.are'."),
            (
                "Outer()",
                "square: 'Outer()' is not a Square or None. Name a part that fits, such as",
            ),
            ("5", "square: '5' is not a Square or None. Name a part that fits, such as Square."),
        ],
    )
    def test_mistakes(self, text: str, message: str) -> None:
        cfg = fdl.Config(annotated)
        assert refused(cfg, set_text, "square", text, parts=PARTS).startswith(message)

    def test_a_dict_of_parts(self) -> None:
        cfg = fdl.Config(by_shape)
        set_text(cfg, "shapes", "{a: Square(2), 'b, c': Square(width=3)}", parts=PARTS)
        assert {key: one.width for key, one in cfg.shapes.items()} == {"a": 2, "b, c": 3}
        message = refused(cfg, set_text, "shapes", "{a: Part(1)}", parts=PARTS)
        assert message == (
            "shapes['a']: 'Part(1)' is not a Shape. Name a part that fits, such as Square."
        )
        message = refused(cfg, set_text, "shapes", "Square(2)", parts=PARTS)
        assert "Write {name: ...}. Name a part that fits, such as Square." in message

    def test_a_value_whose_name_has_dots_is_no_part(self) -> None:
        class Modules(dict[str, Any]):
            def __contains__(self, name: object) -> bool:
                if "." in str(name):
                    raise ConfigError(f"there is no module {name}")
                return super().__contains__(name)

        cfg = fdl.Config(annotated)
        set_text(cfg, "color", "Color.BLUE", parts=Modules(PARTS))
        assert cfg.color is Color.BLUE
        assert "no module" in refused(cfg, set_text, "square", "a.Square()", parts=Modules(PARTS))


class TestUse:
    def test_another_part_keeps_what_both_have(self) -> None:
        cfg = graph()
        edits = use(cfg, "child[3].other", "Wide(child=Square(width=9))", parts=PARTS)
        new = cfg.child[3].other
        assert [edit.path for edit in edits] == ["child[3].other"]
        assert (type(new), fdl.get_callable(new)) == (fdl.ArgFactory, Wide)
        assert fdl.get_tags(new, "width") == {InnerWidth}
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

    def test_each_part_gets_a_successor_of_its_own(self) -> None:
        cfg = fdl.Config(pair, fdl.Config(Part, 1), [fdl.Config(Part, 2)])
        use(cfg, ":Part", "Wide(other=Square())", parts=PARTS)
        assert (cfg.first.width, cfg.second[0].width) == (1, 2)
        assert cfg.first.other is not cfg.second[0].other

    def test_parts_in_parts_that_are_both_replaced(self) -> None:
        inner = fdl.Config(Part, 2)
        cfg = fdl.Config(pair, fdl.Config(Part, 1, child=inner, other=[inner]))
        use(cfg, ":Part", "Wide", parts=PARTS)
        assert fdl.get_callable(cfg.first.child) is Wide
        assert cfg.first.other[0] is cfg.first.child

    def test_where_nothing_is(self) -> None:
        cfg = fdl.Config(annotated, square=None)
        use(cfg, "square", "Square(3)", parts=PARTS)
        use(cfg, "shape", "Square(4)", parts=PARTS)
        assert (cfg.square.width, cfg.shape.width) == (3, 4)

    @pytest.mark.parametrize(
        ("selector", "text", "message"),
        [
            ("child[0].child", "Sqare", "there is no part 'Sqare'. Did you mean Square?"),
            ("child[0].depth", "Square", "child[0].depth is 0 (int), not a part: set:child[0].d"),
            ("child[3].other", "Wide(hight=1)", "Wide: Wide has no argument 'hight'."),
            (":Sqare", "Wide", ":Sqare selects nothing: no part there is a Sqare."),
        ],
    )
    def test_mistakes(self, selector: str, text: str, message: str) -> None:
        assert refused(graph(), use, selector, text, parts=PARTS).startswith(message)

    def test_what_does_not_fit(self) -> None:
        cfg = fdl.Config(annotated, square=fdl.Config(Square))
        message = refused(cfg, use, "square", "Outer", parts=PARTS)
        assert message == "square takes Square or None, not the part Outer."


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

    def test_untying_all_leaves_one_with_the_original(self) -> None:
        cfg = graph()
        original = cfg.child[0].child
        assert len(untie(cfg, "child[1:3].child")) == 2
        assert cfg.child[3].child is cfg.child[3].other.child is original
        assert len(untie(cfg, "child[*].child")) == 2
        assert len({id(block.child) for block in cfg.child}) == 4

    def test_where_all_that_share_are_untied_the_first_keeps_it(self) -> None:
        shared = fdl.Config(Square)
        cfg = fdl.Config(pair, [shared, shared, fdl.Config(Square)])
        assert [edit.path for edit in untie(cfg, "first[*]")] == ["first[1]"]
        assert cfg.first[0] is shared

    @pytest.mark.parametrize(
        ("edit", "arguments", "message"),
        [
            (tie, ("other", "width"), "width is 8 (int), and only a part can be shared."),
            (tie, ("other", "depth"), "depth is not set, and only a part can be shared."),
            (tie, ("other", "child[3].other"), "child[3].other is created for every call"),
            (tie, ("child[0].other", "child[0]"), "child[0].other lies inside child[0] (Outer), "),
            (tie, ("width", "child[0].child"), "width takes int, not the part Square."),
            (untie, ("child[3].other",), "nothing else holds child[3].other (Part). Shared are "
             "child[0].child."),
            (untie, ("width",), "width is 8 (int), and only a part can be shared."),
        ],
    )  # fmt: skip
    def test_mistakes(self, edit: Any, arguments: Any, message: str) -> None:
        assert refused(graph(), edit, *arguments).startswith(message)
