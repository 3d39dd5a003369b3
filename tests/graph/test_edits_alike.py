"""A part that is put where the same one stands is no change; another sharing is."""

from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph.edits import set_text, use

from .edited import PARTS, graph
from .parts import Outer, Part, Square, Width


@pytest.mark.parametrize(
    ("edit", "path", "text"),
    [
        (use, "child[3].other", "Part"),
        (use, ":Square", "Square(width=4)"),
        (use, ":Outer", "Outer"),
        (set_text, "child[3].depth", "{depth} + 1"),
        (set_text, "child[2].depth", "{@Width} * 2"),
        (set_text, "other", "[Square(2), 5, a]"),
        (set_text, "other", "Part(width=1, child=Part(2, other=Square(3)))"),
    ],
)
def test_the_same_twice_is_one_change(edit: Callable[..., Any], path: str, text: str) -> None:
    cfg = graph()
    if edit is set_text:
        assert [one.path for one in edit(cfg, path, text, parts=PARTS)] == [path]
    assert edit(cfg, path, text, parts=PARTS) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("child[3].other", "Wide"),
        ("child[3].other", "Part(other=3)"),
        (":Square", "Square(width=5)"),
    ],
)
def test_another_call_or_argument_is_a_change(path: str, text: str) -> None:
    assert use(graph(), path, text, parts=PARTS)


def test_a_part_of_its_own_for_one_that_was_shared_is_a_change() -> None:
    cfg = graph()
    changed = set_text(cfg, "child[0].child", "Square(width=4)", parts=PARTS)
    assert [one.path for one in changed] == ["child[0].child"]
    assert cfg.child[0].child is not cfg.child[1].child
    assert use(cfg, "child[1].child", "Square(width=4)", parts=PARTS) == []
    assert cfg.child[1].child is cfg.child[2].child


def test_a_new_part_inside_for_one_that_was_shared_is_a_change() -> None:
    inner = fdl.Config(Square, width=4)
    cfg = fdl.Config(Outer, child=fdl.Config(Part, width=1, child=inner), other=inner)
    assert use(cfg, "child", "Part(child=Square(width=4))", parts=PARTS)
    assert use(cfg, "child", "Part(child=Square(width=4))", parts=PARTS) == []


def test_another_tag_is_a_change() -> None:
    cfg = fdl.Config(Outer, width=1, child=fdl.Config(Part, width=Width.new(2)))
    assert set_text(cfg, "child", "Part(width=2)", parts=PARTS)
