"""Provenance: what set a value, now and before, in a graph, in its copies and in files."""

import inspect
from typing import Any

import fiddle as fdl
import pytest
from graph.parts import Depth, Outer, Part, Width, scaled

from fidgpt.graph import ConfigError, clone, find_parameter, parts
from fidgpt.graph.edits import set_text
from fidgpt.graph.provenance import (
    Assignment,
    Source,
    assignments_at,
    attributed_to,
    dump_provenance,
    restore_provenance,
    why_text,
)

HERE = "tests/graph/test_provenance.py"


def line() -> int:
    frame = inspect.currentframe()
    assert frame and frame.f_back
    return frame.f_back.f_lineno


def assignments(cfg: Any, path: str) -> list[Assignment]:
    return assignments_at(find_parameter(cfg, path))


def small() -> fdl.Config[Outer]:
    inner = fdl.Config(Part, width=Width.new())
    return fdl.Config(Outer, width=Width.new(3), child=inner, other=[1, {"a": 2}])


def clone_without_history(cfg: Any) -> Any:
    copy = clone(cfg)
    for node in parts(copy):
        node.value.__argument_history__.clear()
    return copy


class TestAssignments:
    """Every assignment names its line of code, and the directive on whose behalf it ran."""

    def test_code_is_named_by_file_line_and_function(self) -> None:
        cfg = fdl.Config(Outer)
        cfg.depth = 5
        (one,) = assignments(cfg, "depth")
        function = "test_code_is_named_by_file_line_and_function"
        assert (one.value, one.by) == (5, None)
        assert one.where.endswith(f"{HERE}:{line() - 4} in {function}")

    def test_a_directive_is_named_beside_the_code(self) -> None:
        cfg = small()
        with attributed_to("directive 2: fiddler:deepen"):
            cfg.depth = 7
        one = assignments(cfg, "depth")[0]
        assert str(one.by) == "directive 2: fiddler:deepen"
        assert f"{HERE}:{line() - 3}" in one.where
        cfg.depth = 8
        assert assignments(cfg, "depth")[0].by is None

    def test_assignments_are_newest_first(self) -> None:
        cfg = small()
        cfg.width = 4
        del cfg.width
        cfg.width = 5
        values = [one.value for one in assignments(cfg, "width")]
        assert values == [5, fdl.NO_VALUE, 4, 3]

    def test_a_copy_keeps_its_history_and_goes_its_own_way(self) -> None:
        cfg = small()
        copy = clone(cfg)
        copy.width = 9
        assert [one.value for one in assignments(copy, "width")] == [9, 3]
        assert [one.value for one in assignments(cfg, "width")] == [3]


def whole() -> fdl.Config[Outer]:
    """A graph with a value of every kind."""
    cfg = small()
    with attributed_to("directive 1: set:width=6"):
        cfg.width = 6
    cfg.depth = Depth.new(fdl.Config(scaled, number=Width.new(), ratio=3.0))
    cfg.child.child = fdl.Config(Part, width=Depth.new(), other=[Width.new(5), Width.new()])
    set_text(cfg, "child.other", "{width} * 2 + {@Width}")
    with attributed_to("directive 3: set:other[0]=4"):
        find_parameter(cfg, "other[0]").set(4)
    return clone(cfg)


class TestText:
    """What `--why` prints."""

    @pytest.mark.parametrize(
        ("path", "fragments"),
        [
            (
                "child.width",
                ["child.width = 6", "  inherited from width through Width", "    left unset by ",
                 " in small", "  width = 6", "    6  set by directive 1: set:width=6 (",
                 "    3  previously set by ", "  Width: Elements across."],
            ),
            ("rate", ["rate = 0.0", "  default of Outer (", "tests/graph/parts.py:"]),
            ("depth", ["depth = scaled = 18", "depth.number = 6  <- width", "depth.ratio = 3.0"]),
            ("child.other", ["= {width} * 2 + {@Width} = 18", "computed from width = 6"]),
            ("child.other", ["= {width} * 2 + {@Width} = 18", "computed from @Width = 6"]),
            ("other[0]", ["other[0] = 4", "  4  set by directive 3: set:other[0]=4 ("]),
            ("child.child.other[1]", ["= 6", "inherited from width through Width"]),
        ],
    )  # fmt: skip
    def test_it_names_in_order(self, path: str, fragments: list[str]) -> None:
        text = rest = why_text(whole(), path)
        for fragment in fragments:
            _, found, rest = rest.partition(fragment)
            assert found, f"{fragment} in {text}"

    def test_of_many_assignments_is_short(self) -> None:
        cfg = small()
        for value in range(50):
            cfg.width = value
        text = why_text(cfg, "width")
        assert len(text.splitlines()) <= 15


class TestFile:
    """The history is kept beside a saved graph, apart from its content."""

    def test_a_restored_graph_has_the_same_texts(self) -> None:
        cfg = small()
        meant = Source("set:width=${env:A}", "directive", 2, "runs/a", meant="set:width=6")
        assert str(meant) == "runs/a: directive 2: set:width=${env:A}, here set:width=6"
        with attributed_to(meant):
            cfg.width = 6
            cfg.depth = None
            del cfg.depth
            find_parameter(cfg, "other[0]").set(4)
        again = clone_without_history(cfg)
        restore_provenance(again, dump_provenance(cfg))
        for path in ("width", "depth", "other", "other[0]"):
            assert why_text(again, path) == why_text(cfg, path)

    @pytest.mark.parametrize("text", ["", "[]", '{"width": 3}', '{"width": [{"by": "me"}]}'])
    def test_other_texts_are_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="the provenance is"):
            restore_provenance(small(), text)


def test_a_run_resumed_twice_is_named_once() -> None:
    cfg = fdl.Config(Part, width=3)
    with attributed_to(Source("set:width=6", "directive", 2)):
        cfg.width = 6
    for _ in range(3):
        again = fdl.Config(Part, width=6)
        restore_provenance(again, dump_provenance(cfg), source="runs/x")
        cfg = again
    assert assignments(cfg, "width")[0].by == Source("set:width=6", "directive", 2, "runs/x")
