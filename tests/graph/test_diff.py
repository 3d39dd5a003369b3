"""`diff`: what differs between two bound graphs, each at the one place that says it."""

from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import (
    SharingChanged,
    ValueChanged,
    bind,
    clone,
    clone_part,
    diff,
    diff_text,
    fingerprint,
)
from fidgpt.graph.formulas import make_formula

from . import elsewhere
from .differences import told
from .parts import Depth, Outer, Part, Square, Wide, Width, pair, scaled

Change = Callable[[Any], None]


def outer(**arguments: Any) -> fdl.Config:
    """Says a width, which two parts hear; one of them is held twice."""
    shared = fdl.Config(Part, Width.new())
    given = {"child": fdl.Config(pair, fdl.Config(Part, Width.new()), shared), "other": shared}
    return fdl.Config(Outer, width=Width.new(3), **(given | arguments))


def told_of(change: Change, old: Any = None) -> list[str]:
    """What is told of a change to a graph."""
    old = outer() if old is None else old
    new = clone(old)
    change(new)
    return told(old, new)


def test_a_graph_does_not_differ_from_its_copy_nor_from_what_it_is_bound_to() -> None:
    assert diff(outer(), outer()) == []
    assert diff(outer(), bind(outer())) == []
    assert told(outer(), outer()) == ["no difference"]


def test_a_value_that_is_heard_is_one_change_where_it_is_said() -> None:
    def widen(cfg: Any) -> None:
        cfg.width = 4

    assert told_of(widen) == ["~ width: 3 -> 4, inherited by 2 parameters"]
    old, new = outer(), outer()
    widen(new)
    (change,) = diff(old, new)
    assert isinstance(change, ValueChanged)
    assert (change.old.value, change.new.value) == (3, 4)
    assert sorted(change.inherited_by) == ["child.first.width", "child.second.width"]


def test_a_quantity_that_stops_being_heard_is_told_where_it_was_heard() -> None:
    def set_one(cfg: Any) -> None:
        cfg.child.first.width = 8

    assert told_of(set_one) == ["~ child.first.width: 3 (inherited from width) -> 8"]


def test_a_nearer_word_is_the_change_and_not_what_hears_it() -> None:
    old = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Outer, child=fdl.Config(Part)))
    fdl.add_tag(old.child, "width", Width)
    fdl.add_tag(old.child.child, "width", Width)

    def say(cfg: Any) -> None:
        cfg.child.width = 5

    assert told_of(say, old) == [
        "~ child.width: 3 (inherited from width) -> 5, inherited by 1 parameter",
    ]


def test_a_default_and_the_same_value_set_are_no_difference() -> None:
    assert diff(fdl.Config(Square), fdl.Config(Square, width=1)) == []
    assert told(fdl.Config(Square), fdl.Config(Square, width=2)) == ["~ width: 1 (default) -> 2"]


@pytest.mark.parametrize(
    ("old", "new"), [(1, True), (1, 1.0), ([1], (1,)), ("1", 1), (0.0, -0.0), (None, "None")]
)
def test_values_of_different_types_differ(old: Any, new: Any) -> None:
    assert len(diff(fdl.Config(Outer, child=old), fdl.Config(Outer, child=new))) == 1


def test_values_that_cannot_be_written_are_compared_too() -> None:
    def function() -> None: ...

    one, same = fdl.Config(Outer, child=function), fdl.Config(Outer, child=function)
    assert diff(one, same) == []
    assert len(diff(one, fdl.Config(Outer, child=lambda: None))) == 1
    odd = float("nan")
    assert diff(fdl.Config(Outer, child=odd), fdl.Config(Outer, child=odd)) == []


def test_parts_come_go_and_become_others() -> None:
    def add(cfg: Any) -> None:
        cfg.child.first.other = fdl.Config(Wide, Width.new(), child=fdl.Config(Square))

    def remove(cfg: Any) -> None:
        cfg.child.first = None

    def replace(cfg: Any) -> None:
        fdl.update_callable(cfg.child.first, Wide)

    def make_later(cfg: Any) -> None:
        cfg.child.first = fdl.Partial(Part, Width.new())

    assert told_of(add) == ["+ child.first.other: Wide(width=Width, child=Square())"]
    assert told_of(remove) == ["- child.first: Part(width=Width), now None"]
    assert told_of(replace) == ["~ child.first: Part -> Wide"]
    assert told_of(make_later) == ["~ child.first: Config of Part -> Partial of Part"]


def test_parts_of_one_name_are_told_by_their_whole_names() -> None:
    def replace(cfg: Any) -> None:
        fdl.update_callable(cfg.child.first, elsewhere.Part)

    here, there = Part.__module__, elsewhere.Part.__module__
    assert told_of(replace)[0] == f"~ child.first: {here}.Part -> {there}.Part"


def test_what_comes_with_another_call_is_not_told() -> None:
    """Part hears a width, Square has a default for it; each has parameters that the other lacks."""
    old = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, Width.new()))
    new = clone(old)
    new.child = fdl.Config(scaled, Width.new(), ratio=0.1)
    assert told(old, new) == ["~ child: Part -> scaled", "~ child.ratio: not set -> 0.1"]
    new.child = fdl.Config(Square)
    assert told(old, new) == [
        "~ child: Part -> Square",
        "~ child.width: no longer tagged Width",
        "~ child.width: 3 (inherited from width) -> 1 (default)",
    ]


def test_an_equal_part_is_kept_apart_from_a_shared_one() -> None:
    def untie(cfg: Any) -> None:
        cfg.other = clone_part(cfg.other)

    tied, untied = outer(), outer()
    untie(untied)
    assert told(tied, untied) == [
        "& other: shared with child.second -> an equal Part of its own",
    ]
    assert told(untied, tied) == [
        "& other: an equal Part of its own -> shared with child.second",
    ]
    untied.other.other = 1
    assert told(tied, untied) == [
        "& other: shared with child.second -> a Part of its own",
        "~ other.other: None (default) -> 1",
    ]


def test_a_part_may_be_shared_with_another() -> None:
    parts = [fdl.Config(Square, 1), fdl.Config(Square, 2)]
    old = fdl.Config(Outer, child=parts, other=parts[0])
    (change,) = diff(old, fdl.Config(Outer, child=parts, other=parts[1]))
    assert isinstance(change, SharingChanged)
    assert (change.old.shared_with, change.new.shared_with) == ("child[0]", "child[1]")
    assert told(old, fdl.Config(Outer, child=parts)) == [
        "& other: shared with child[0] -> None (default)"
    ]


def entries(**parts: Any) -> fdl.Config:
    return fdl.Config(Outer, width=Width.new(3), other=parts)


def test_every_place_that_joins_or_leaves_a_shared_part_is_told() -> None:
    one, two = fdl.Config(Square, 1), fdl.Config(Square, 2)
    apart = entries(a=one, b=two, c=two)
    assert told(apart, entries(a=one, b=one, c=None)) == [
        "& other['b']: shared with other['c'] -> shared with other['a']",
        "& other['c']: shared with other['b'] -> None",
    ]
    assert told(entries(a=None, b=None), entries(a=one, b=one)) == [
        "+ other['a']: Square(width=1)",
        "& other['b']: None -> shared with other['a']",
    ]


def test_a_part_of_its_own_is_equal_only_if_it_builds_the_same() -> None:
    shared = fdl.Config(Outer, child={"a": fdl.Config(Square), "b": fdl.Config(Square)})
    own = clone(shared)
    own.child = dict(reversed(own.child.items()))
    old = entries(a=shared, b=shared)
    assert told(old, entries(a=shared, b=own)) == [
        "& other['b']: shared with other['a'] -> an equal Outer of its own"
    ]
    fdl.add_tag(own, "depth", Depth)
    assert told(old, entries(a=shared, b=own)) == [
        "& other['b']: shared with other['a'] -> a Outer of its own",
        "~ other['b'].depth: tagged Depth",
    ]


def test_a_computed_quantity_is_one_part_and_heard_like_others() -> None:
    def graph(ratio: float) -> fdl.Config:
        width = Width.new(fdl.Config(scaled, number=10, ratio=ratio))
        return fdl.Config(Outer, width=width, child=fdl.Config(Part, Width.new()))

    assert told(graph(0.5), graph(0.2)) == ["~ width.ratio: 0.5 -> 0.2"]
    plain = fdl.Config(Outer, width=Width.new(5), child=fdl.Config(Part, Width.new()))
    assert told(plain, graph(0.2)) == ["+ width: scaled(number=10, ratio=0.2), instead of 5"]


def test_tags_are_compared() -> None:
    old, new = outer(), outer()
    fdl.remove_tag(new, "width", Width)
    fdl.add_tag(new, "depth", Depth)
    new.child.first.width = new.other.width = 3
    assert told(old, new) == [
        "~ width: no longer tagged Width",
        "~ depth: tagged Depth",
    ]


def test_changes_hold_the_parts_of_the_given_graphs() -> None:
    old, new = outer(), outer()
    new.child.first.other = fdl.Config(Wide, Width.new())
    (change,) = diff(old, new)
    assert change.new.value is new.child.first.other
    assert (change.old.path, change.new.path) == ("child.first.other", "child.first.other")


def test_nothing_is_changed() -> None:
    old, new = outer(), outer(child=[fdl.Config(Wide, Width.new())])
    before = fingerprint(old), fingerprint(new), repr(old), repr(new)
    diff(old, new)
    assert (fingerprint(old), fingerprint(new), repr(old), repr(new)) == before


def test_a_formula_reads_as_it_was_written() -> None:
    old, new = fdl.Config(Outer, depth=4, width=1), fdl.Config(Outer, depth=4, width=1)
    new.width = make_formula(new, "{depth} * 2")
    assert "{depth} * 2" in diff_text(diff(old, new))
    assert "formula" not in diff_text(diff(old, new))


def test_twins_that_say_a_quantity_hear_themselves() -> None:
    """Of equal parts, each hears what it says itself, not what the first of them says."""
    old = fdl.Config(
        Outer, child=[fdl.Config(Part, Width.new(), other=Width.new(3)) for _ in range(3)]
    )
    new = clone(old)
    new.child[1].width = 3
    new.child[2].width = 4
    assert [str(change) for change in diff(old, new)] == [
        "~ child[2].width: 3 (inherited from child[2].other) -> 4"
    ]
