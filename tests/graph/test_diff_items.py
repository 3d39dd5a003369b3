"""`diff` of lists and dicts: items that came, went, moved, or resemble one another."""

from typing import Any

import fiddle as fdl

from fidgpt.graph import PartAdded, clone, diff
from fidgpt.graph.difference.alignment import align

from .differences import told
from .parts import Depth, Outer, Part, Square, Wide, Width, scaled


def items(*parts: Any, **arguments: Any) -> fdl.Config:
    return fdl.Config(Outer, width=Width.new(3), child=list(parts), **arguments)


def wide(**arguments: Any) -> fdl.Config:
    return fdl.Config(Wide, Width.new(), **arguments)


def test_an_item_in_front_leaves_the_others_alone() -> None:
    old = items(*(wide(other=i) for i in range(5)))
    new = items(fdl.Config(Square), *(wide(other=i) for i in range(5)))
    assert told(old, new) == ["+ child[0]: Square()"]
    new.width = 4
    assert told(old, new) == ["~ width: 3 -> 4, inherited by 5 parameters", "+ child[0]: Square()"]
    assert told(new, old) == ["~ width: 4 -> 3, inherited by 5 parameters", "- child[0]: Square()"]


def test_items_that_resemble_another_are_told_by_what_they_do_not_share_with_it() -> None:
    old = items(wide(other=1))
    new = items(wide(other=1), wide(other=1), wide(other=2), wide(other=1))
    assert told(old, new) == [
        "+ child[1-3]: Wide like child[0]",
        "~ child[2].other: 1 -> 2",
    ]
    added = [change for change in diff(old, new) if isinstance(change, PartAdded)]
    assert [change.new.value for change in added] == new.child[1:]


def test_an_item_that_resembles_another_but_does_not_share_with_it_says_so() -> None:
    """Two layers with a table of positions each, where one was for all."""

    def layer(table: Any) -> fdl.Partial:
        return fdl.Partial(Wide, Width.new(), child=fdl.ArgFactory(Outer, child=table))

    table = fdl.Config(Square)
    number = fdl.Config(scaled, number=10)
    both = items(layer(number), layer(clone(number)))
    assert told(items(layer(number)), both) == ["+ child[1]: Wide like child[0]"]
    old = items(layer(table))
    assert told(old, items(layer(table), layer(table))) == ["+ child[1]: Wide like child[0]"]
    assert told(old, items(layer(table), layer(fdl.Config(Square)))) == [
        "+ child[1]: Wide like child[0]",
        "& child[1].child.child: an equal Square of its own, not child[0].child.child",
    ]


def test_what_an_item_in_the_image_of_another_changes_explains_nothing_in_that_other() -> None:
    def layer(tag: Any, width: int) -> fdl.Config:
        part = fdl.Config(Part)
        fdl.add_tag(part, "width", tag)
        return fdl.Config(Outer, width=Width.new(width), depth=Depth.new(7), child=part)

    changed = told(items(layer(Width, 5)), items(layer(Depth, 5), layer(Width, 6)))
    assert changed[:2] == [
        "~ child[0].child.width: no longer tagged Width, tagged Depth",
        "~ child[0].child.width: 5 (inherited from child[0].width) -> "
        "7 (inherited from child[0].depth)",
    ]


def test_lists_and_tuples_differ() -> None:
    old = items(wide(), wide())
    new = fdl.Config(Outer, width=Width.new(3), child=tuple(old.child))
    assert told(old, new) == ["~ child: list -> tuple"]


def test_the_common_order_of_two_lists_counts_repeated_items() -> None:
    old, new = (list(zip(text, strict=True)) for text in ("paaq", "arsat"))
    paired = [(1, 0, False), (2, 3, False), (3, 4, False)]  # q and t by their position
    assert [pair for pair in align(old, new) if None not in pair] == paired
    assert align(list(zip("ab", strict=True)), list(zip("ba", strict=True))) == [
        (1, 0, False),
        (0, 1, True),
    ]


def test_items_may_move_and_change_in_their_place() -> None:
    old = items(wide(other=1), fdl.Config(Square), wide(other=2))
    moved = items(fdl.Config(Square), wide(other=2), wide(other=1))
    assert told(old, moved) == ["~ child[2]: Wide(width=Width, other=1), was child[0]"]
    changed = items(wide(other=1), fdl.Config(Square, width=2), wide(other=3))
    assert told(old, changed) == [
        "~ child[1].width: 1 (default) -> 2",
        "~ child[2].other: 2 -> 3",
    ]


def test_entries_of_dicts_go_by_their_keys() -> None:
    old = fdl.Config(Outer, child={"a": fdl.Config(Square), "b": fdl.Config(Square)})
    new = fdl.Config(Outer, child={"c": fdl.Config(Square), "b": fdl.Config(Square, 2)})
    assert sorted(told(old, new)) == [
        "+ child['c']: Square()",
        "- child['a']: Square()",
        "~ child['b'].width: 1 (default) -> 2",
    ]


def test_brackets_in_a_key_are_no_index() -> None:
    keys = ("a[]", "x[1]", "x[2]")
    old, new = (items({key: fdl.Config(Square, one) for key in keys}) for one in (2, 3))
    assert told(old, new) == [f"~ child[0][{key!r}].width: 2 -> 3" for key in keys]


def test_changes_that_items_have_in_common_are_one_line() -> None:
    old = items(*(wide(child=[wide(), wide()]) for _ in range(4)))
    new = clone(old)
    for i in (0, 1, 2):
        new.child[i].child[1].other = 7
    assert told(old, new) == ["~ child[0-2].child[1].other: None (default) -> 7"]
    new.child[3].child[0].other = 7
    assert len(told(old, new)) == 4
