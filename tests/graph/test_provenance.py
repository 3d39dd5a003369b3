"""Who said a value, who said it before, and what remains of that in a copy and in a file."""

import inspect
import json
from typing import Any

import fiddle as fdl
import pytest
from fiddle import history
from graph.parts import Depth, Outer, Part, Wide, Width, scaled, whole_graph

from fidgpt.graph import ConfigError, clone, find_parameter, parts, swapped
from fidgpt.graph.edits import set_text
from fidgpt.graph.provenance import (
    Source,
    attributed_to,
    dump_provenance,
    provenance_of,
    restore_provenance,
    why_text,
)

HERE = "tests/graph/test_provenance.py"


def line() -> int:
    frame = inspect.currentframe()
    assert frame and frame.f_back
    return frame.f_back.f_lineno


def small() -> fdl.Config[Outer]:
    inner = fdl.Config(Part, width=Width.new())
    return fdl.Config(Outer, width=Width.new(3), child=inner, other=[1, {"a": 2}])


def clone_without_history(cfg: Any) -> Any:
    copy = clone(cfg)
    for node in parts(copy):
        node.value.__argument_history__.clear()
    return copy


class TestSayings:
    """Every assignment names its line of code, and the directive on whose behalf it ran."""

    def test_code_is_named_by_file_line_and_function(self) -> None:
        cfg = fdl.Config(Outer)
        cfg.depth = 5
        (said,) = provenance_of(cfg, "depth").sayings
        function = "test_code_is_named_by_file_line_and_function"
        assert (said.value, said.by) == (5, None)
        assert said.where.endswith(f"{HERE}:{line() - 4} in {function}")

    def test_a_directive_is_named_beside_the_code(self) -> None:
        cfg = small()
        with attributed_to("directive 2: fiddler:deepen"):
            cfg.depth = 7
        said = provenance_of(cfg, "depth").sayings[0]
        assert str(said.by) == "directive 2: fiddler:deepen"
        assert f"{HERE}:{line() - 3}" in said.where
        cfg.depth = 8
        assert provenance_of(cfg, "depth").sayings[0].by is None

    def test_the_graphs_own_files_are_nobody(self) -> None:
        cfg = small()
        find_parameter(cfg, "depth").set(2)
        assert HERE in provenance_of(cfg, "depth").sayings[0].where

    def test_newest_first_and_those_that_lost_are_kept(self) -> None:
        cfg = small()
        cfg.width = 4
        del cfg.width
        cfg.width = 5
        values = [said.value for said in provenance_of(cfg, "width").sayings]
        assert values == [5, fdl.NO_VALUE, 4, 3]

    def test_sayings_nest(self) -> None:
        cfg = small()
        with attributed_to("outer"):
            with attributed_to("inner"):
                cfg.width = 1
            cfg.depth = 1
        said = [str(provenance_of(cfg, key).sayings[0].by) for key in ("width", "depth")]
        assert said == ["inner", "outer"]

    def test_a_copy_keeps_its_history_and_goes_its_own_way(self) -> None:
        cfg = small()
        copy = clone(cfg)
        copy.width = 9
        assert [said.value for said in provenance_of(copy, "width").sayings] == [9, 3]
        assert [said.value for said in provenance_of(cfg, "width").sayings] == [3]

    def test_a_swapped_part_keeps_what_was_said_to_the_one_before(self) -> None:
        old = fdl.Config(Part, width=2)
        with attributed_to("directive 1"):
            old.width = 3
        with attributed_to("directive 2"):
            new = swapped(old, Wide)
        said = provenance_of(new, "width").sayings
        assert [(one.value, one.by) for one in said] == [(3, Source("directive 1")), (2, None)]

    def test_another_location_goes_before_ours(self) -> None:
        cfg = small()
        place = history.Location("elsewhere", 5, None)
        with history.custom_location(lambda: place):
            cfg.width = 1
        assert provenance_of(cfg, "width").sayings[0].where == "elsewhere:5"


class TestStory:
    """Where a value comes from, whatever kind it is."""

    def test_heard_through_a_tag_from_the_place_that_says_it(self) -> None:
        cfg = small()
        with attributed_to("directive 1: set:width=6"):
            cfg.width = 6
        told = provenance_of(cfg, "child.width")
        assert (told.value, told.through, told.sayings) == (6, ("Width",), [])
        assert told.source is not None
        assert told.source.path == "width"
        assert str(told.source.sayings[0].by) == "directive 1: set:width=6"
        assert told.left_open is not None
        assert "in small" in told.left_open.where

    def test_what_was_said_before_a_place_was_opened_again_is_told(self) -> None:
        cfg = small()
        cfg.child.width = 8
        del cfg.child.width
        told = provenance_of(cfg, "child.width")
        assert told.value == 3
        assert [said.value for said in told.sayings] == [fdl.NO_VALUE, 8]

    def test_a_default_names_its_constructor(self) -> None:
        told = provenance_of(small(), "rate")
        assert (told.value, told.sayings) == (0.0, [])
        assert told.default_of is not None
        assert told.default_of.startswith("Outer (")
        assert "tests/graph/parts.py:" in told.default_of

    def test_a_computed_value_names_what_it_is_computed_from(self) -> None:
        cfg = small()
        cfg.depth = Depth.new(fdl.Config(scaled, number=Width.new(), ratio=3.0))
        told = provenance_of(cfg, "depth")
        assert told.result == 9
        assert [(one.path, one.value, one.heard_from) for one in told.computed_from] == [
            ("depth.number", 3, "width"),
            ("depth.ratio", 3.0, None),
        ]
        cfg.child.child = fdl.Config(Part, width=Depth.new())
        source = provenance_of(cfg, "child.child.width").source
        assert source is not None
        assert source.result == 9

    def test_a_formula_names_the_values_in_it(self) -> None:
        cfg = small()
        set_text(cfg, "depth", "{width} * 2 + {@Width}")
        told = provenance_of(cfg, "depth")
        assert told.result == 9
        assert {one.path: one.value for one in told.computed_from} == {"width": 3, "@Width": 3}
        assert why_text(cfg, "depth").splitlines()[0] == "depth = {width} * 2 + {@Width} = 9"

    def test_what_is_not_set_and_has_no_default_has_no_value(self) -> None:
        told = provenance_of(fdl.Config(Part), "width")
        assert (told.value, told.sayings, told.default_of) == (fdl.NO_VALUE, [], None)

    def test_an_item_names_who_said_the_whole(self) -> None:
        told = provenance_of(small(), "other[1]['a']")
        assert (told.value, told.sayings) == (2, [])
        assert told.holder is not None
        assert told.holder.path == "other"
        assert "in small" in told.holder.sayings[0].where

    def test_an_item_that_was_recorded_names_who_said_it(self) -> None:
        cfg = small()
        with attributed_to("directive 3: set:other[0]=4"):
            find_parameter(cfg, "other[0]").set(4)
        said = provenance_of(clone(cfg), "other[0]").sayings
        assert [(one.value, str(one.by)) for one in said] == [(4, "directive 3: set:other[0]=4")]

    def test_a_quantity_in_a_list_tells_its_own(self) -> None:
        cfg = fdl.Config(Outer, width=Width.new(2), other=[Width.new(5), Width.new()])
        assert provenance_of(cfg, "other[0]").sayings[0].value == 5
        told = provenance_of(cfg, "other[1]")
        assert told.source is not None
        assert told.source.path == "width"

    def test_a_path_through_a_shared_part_tells_the_same(self) -> None:
        shared = fdl.Config(Part, width=Width.new())
        cfg = fdl.Config(Outer, width=Width.new(2), child=shared, other=[shared])
        assert (
            provenance_of(cfg, "other[0].width").source == provenance_of(cfg, "child.width").source
        )

    def test_a_wrong_path_suggests_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match="Did you mean width"):
            provenance_of(small(), "child.widht")

    def test_every_place_of_a_graph_has_a_story(self) -> None:
        cfg = whole_graph()
        for path in json.loads(dump_provenance(cfg)):
            assert 2 <= len(why_text(cfg, path).splitlines()) <= 15


class TestText:
    """The chain in lines for a person."""

    def test_of_what_is_heard(self) -> None:
        cfg = small()
        with attributed_to("directive 1: set:width=6"):
            cfg.width = 6
        lines = why_text(cfg, "child.width").splitlines()
        assert lines[0] == "child.width = 6"
        assert lines[1] == "  heard through Width from width"
        assert lines[2].startswith("    left open by ")
        assert lines[3] == "  width = 6"
        assert lines[4].startswith("    6  said by directive 1: set:width=6 (")
        assert lines[5].startswith("    3  before, said by ")
        assert lines[6] == "  Width: Elements across."

    def test_of_many_sayings_is_short(self) -> None:
        cfg = small()
        for value in range(50):
            cfg.width = value
        text = why_text(cfg, "width")
        assert "and 46 times before" in text
        assert len(text.splitlines()) <= 15

    def test_of_what_nobody_recorded(self) -> None:
        with history.suspend_tracking():
            cfg = small()
        assert why_text(cfg, "width").splitlines()[:2] == [
            "width = 3",
            "  nobody recorded who said it",
        ]

    def test_of_a_default(self) -> None:
        assert why_text(small(), "rate").splitlines()[1].startswith("  the default of Outer (")


class TestFile:
    """What was said is kept beside a saved graph, apart from its content."""

    def test_a_restored_graph_tells_the_same_text(self) -> None:
        cfg = small()
        with attributed_to(Source("set:width=6", "directive", 2)):
            cfg.width = 6
            cfg.depth = None
            del cfg.depth
            find_parameter(cfg, "other[0]").set(4)
        again = clone_without_history(cfg)
        restore_provenance(again, dump_provenance(cfg))
        for path in ("width", "depth", "other", "other[0]"):
            assert why_text(again, path) == why_text(cfg, path)

    def test_later_words_come_on_top(self) -> None:
        cfg = small()
        again = clone_without_history(cfg)
        restore_provenance(again, dump_provenance(cfg), source="runs/x")
        with attributed_to("directive 2: set:width=9"):
            again.width = 9
        assert [said.value for said in provenance_of(again, "width").sayings] == [9, "3"]

    def test_directives_of_another_run_are_told_apart(self) -> None:
        cfg = small()
        with attributed_to(Source("set:width=6", "directive", 2)):
            cfg.width = 6
        again = clone_without_history(cfg)
        restore_provenance(again, dump_provenance(cfg), source="runs/x")
        said = provenance_of(again, "width").sayings[0]
        assert said.by == Source("set:width=6", "directive", 2, run="runs/x")
        assert said.who.startswith("runs/x: directive 2: set:width=6 (")

    def test_it_is_no_content(self) -> None:
        cfg = whole_graph()
        again = clone_without_history(cfg)
        restore_provenance(again, dump_provenance(cfg))
        assert repr(again) == repr(cfg)

    def test_paths_that_are_gone_are_passed_over(self) -> None:
        cfg = small()
        restore_provenance(cfg, '{"nowhere.at.all[3]": [{"value": "1", "by": "me"}]}')
        assert provenance_of(cfg, "width").sayings[0].value == 3

    @pytest.mark.parametrize("text", ["", "[]", '{"width": 3}', '{"width": [{"by": "me"}]}'])
    def test_what_is_no_provenance_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="the provenance is"):
            restore_provenance(small(), text)

    def test_a_chain_of_a_thousand_parts(self) -> None:
        cfg = fdl.Config(Part, width=0)
        for width in range(1000):
            cfg = fdl.Config(Part, width=width, child=cfg)
        text = dump_provenance(cfg)
        restore_provenance(cfg, text)
        deep = ".".join(["child"] * 1000) + ".width"
        assert provenance_of(cfg, deep).sayings[0].value == "0"
