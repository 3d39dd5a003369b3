"""`diff`: the differences between two bound graphs, each at the one place that sets it."""

import random
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import (
    PartAdded,
    SharingChanged,
    ValueChanged,
    bind,
    clone,
    clone_part,
    diff,
    diff_text,
)
from fidgpt.graph.formulas import make_formula

from . import elsewhere, namesakes
from .parts import Depth, Outer, Part, Rate, Square, Wide, Width, holding, pair, scaled


def lines(old: Any, new: Any) -> list[str]:
    return diff_text(diff(old, new)).splitlines()


def outer(**arguments: Any) -> fdl.Config:
    """Set a width, which two nodes inherit; one of them is held twice."""
    shared = fdl.Config(Part, Width.new())
    held = {"child": fdl.Config(pair, fdl.Config(Part, Width.new()), shared), "other": shared}
    return fdl.Config(Outer, width=Width.new(3), **(held | arguments))


def items(*held: Any, **arguments: Any) -> fdl.Config:
    return fdl.Config(Outer, width=Width.new(3), child=list(held), **arguments)


def wide(**arguments: Any) -> fdl.Config:
    return fdl.Config(Wide, Width.new(), **arguments)


def assigned(path: str, value: Any) -> Callable[[Any], None]:
    *way, last = path.split(".")

    def change(cfg: Any) -> None:
        for name in way:
            cfg = getattr(cfg, name)
        setattr(cfg, last, value)

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (assigned("depth", 0), ["no difference"]),
        (assigned("width", 4), ["~ width: 3 -> 4, inherited by 2 parameters"]),
        (assigned("child.first.width", 8), ["~ child.first.width: 3 (inherited from width) -> 8"]),
        (
            assigned("child.first.other", fdl.Config(Wide, Width.new(), child=fdl.Config(Square))),
            ["+ child.first.other: Wide(width=Width, child=Square())"],
        ),
        (assigned("child.first", None), ["- child.first: Part(width=Width), now None"]),
        (lambda cfg: fdl.update_callable(cfg.child.first, Wide), ["~ child.first: Part -> Wide"]),
        (
            assigned("child.first", fdl.Partial(Part, Width.new())),
            ["~ child.first: Config of Part -> Partial of Part"],
        ),
        (
            lambda cfg: fdl.update_callable(cfg.child.first, elsewhere.Part),
            [f"~ child.first: {Part.__module__}.Part -> {elsewhere.__name__}.Part"],
        ),
        (
            lambda cfg: setattr(cfg, "other", clone_part(cfg.other)),
            ["& other: shared with child.second -> an equal Part of its own"],
        ),
        (
            lambda cfg: (fdl.remove_tag(cfg, "rate", Rate), fdl.add_tag(cfg, "depth", Depth)),
            ["~ depth: tagged Depth", "~ rate: no longer tagged Rate"],
        ),
        (
            lambda cfg: fdl.add_tag(cfg, "width", namesakes.Width),
            [f"~ width: tagged {namesakes.__name__}.Width"],
        ),
        (
            lambda cfg: setattr(cfg, "depth", make_formula(cfg, "{width} * 2")),
            ["+ depth: {width} * 2, instead of 0"],
        ),
    ],
)
def test_a_change_is_one_line(change: Callable[[Any], None], expected: list[str]) -> None:
    old = outer(depth=0)
    fdl.add_tag(old, "rate", Rate)
    old.rate = 0.0
    new = clone(old)
    change(new)
    assert lines(old, new)[: len(expected)] == expected


def test_a_graph_does_not_differ_from_what_it_is_bound_to() -> None:
    assert diff(outer(), bind(outer())) == []
    assert diff(fdl.Config(Square), fdl.Config(Square, width=1)) == []


def test_changes_hold_values_paths_and_nodes_of_both_graphs() -> None:
    old, new = outer(), outer()
    new.width = 4
    new.child.first.other = wide()
    value, added = diff(old, new)
    assert isinstance(value, ValueChanged)
    assert (value.old.value, value.new.value) == (3, 4)
    assert sorted(value.inherited_by)[:2] == ["child.first.other.width", "child.first.width"]
    assert added.new.value is new.child.first.other
    assert (added.old.path, added.new.path) == ("child.first.other", "child.first.other")


def test_a_nearer_binding_is_the_change_and_not_its_heirs() -> None:
    old = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Outer, child=fdl.Config(Part)))
    fdl.add_tag(old.child, "width", Width)
    fdl.add_tag(old.child.child, "width", Width)
    new = clone(old)
    new.child.width = 5
    line = "~ child.width: 3 (inherited from width) -> 5, inherited by 1 parameter"
    assert lines(old, new) == [line]


@pytest.mark.parametrize("value", [lambda: None, float("nan")])
def test_values_that_cannot_be_written_equal_themselves(value: Any) -> None:
    assert diff(fdl.Config(Outer, child=value), fdl.Config(Outer, child=value)) == []
    assert len(diff(fdl.Config(Outer, child=value), fdl.Config(Outer, child=lambda: None))) == 1


def test_arguments_that_come_with_another_call_are_left_out() -> None:
    """Part inherits a width, Square has a default for it; each has parameters of its own."""
    old = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, Width.new()))
    new = clone(old)
    new.child = fdl.Config(scaled, Width.new(), ratio=0.1)
    assert lines(old, new) == ["~ child: Part -> scaled", "~ child.ratio: not set -> 0.1"]
    new.child = fdl.Config(Square)
    assert lines(old, new) == [
        "~ child: Part -> Square",
        "~ child.width: no longer tagged Width",
        "~ child.width: 3 (inherited from width) -> 1 (default)",
    ]


def entries(**held: Any) -> fdl.Config:
    return fdl.Config(Outer, width=Width.new(3), other=held)


def test_sharing_is_compared_place_by_place() -> None:
    tied, untied = outer(), outer()
    untied.other = clone_part(untied.other)
    text = "& other: an equal Part of its own -> shared with child.second"
    assert lines(untied, tied) == [text]
    untied.other.other = 1
    assert lines(tied, untied) == [
        "& other: shared with child.second -> a Part of its own",
        "~ other.other: None (default) -> 1",
    ]
    one, two = fdl.Config(Square, 1), fdl.Config(Square, 2)
    old = fdl.Config(Outer, child=[one, two], other=one)
    (change,) = diff(old, fdl.Config(Outer, child=[one, two], other=two))
    assert isinstance(change, SharingChanged)
    assert (change.old.shared_with, change.new.shared_with) == ("child[0]", "child[1]")
    assert lines(entries(a=one, b=two, c=two), entries(a=one, b=one, c=None)) == [
        "& other['b']: shared with other['c'] -> shared with other['a']",
        "& other['c']: shared with other['b'] -> None",
    ]
    assert lines(entries(a=None, b=None), entries(a=one, b=one)) == [
        "+ other['a']: Square(width=1)",
        "& other['b']: None -> shared with other['a']",
    ]


def test_a_computed_quantity_is_one_node() -> None:
    def graph(ratio: float) -> fdl.Config:
        width = Width.new(fdl.Config(scaled, number=10, ratio=ratio))
        return fdl.Config(Outer, width=width, child=fdl.Config(Part, Width.new()))

    assert lines(graph(0.5), graph(0.2)) == ["~ width.ratio: 0.5 -> 0.2"]
    plain = fdl.Config(Outer, width=Width.new(5), child=fdl.Config(Part, Width.new()))
    assert lines(plain, graph(0.2)) == ["+ width: scaled(number=10, ratio=0.2), instead of 5"]


def test_equal_items_inherit_from_themselves() -> None:
    """Of equal nodes, each inherits what it sets itself, not what the first of them sets."""
    old = items(*(fdl.Config(Part, Width.new(), other=Width.new(3)) for _ in range(3)))
    del old.width
    fdl.clear_tags(old, "width")
    new = clone(old)
    new.child[1].width = 3
    new.child[2].width = 4
    expected = ["~ child[2].width: 3 (inherited from child[2].other) -> 4"]
    assert lines(old, new) == expected


def test_items_that_come_go_and_move() -> None:
    old = items(*(wide(other=i) for i in range(5)))
    new = items(fdl.Config(Square), *(wide(other=i) for i in range(5)))
    assert lines(old, new) == ["+ child[0]: Square()"]
    new.width = 4
    assert lines(new, old) == ["~ width: 4 -> 3, inherited by 5 parameters", "- child[0]: Square()"]
    old = items(wide(other=1), fdl.Config(Square), wide(other=2))
    moved = items(fdl.Config(Square), wide(other=2), wide(other=1))
    assert lines(old, moved) == ["~ child[2]: Wide(width=Width, other=1), was child[0]"]
    changed = items(wide(other=1), fdl.Config(Square, width=2), wide(other=3))
    assert lines(old, changed) == ["~ child[1].width: 1 (default) -> 2", "~ child[2].other: 2 -> 3"]
    one_of_all = fdl.Config(Outer, width=Width.new(3), child=tuple(old.child))
    assert lines(old, one_of_all) == ["~ child: list -> tuple"]


def test_items_that_resemble_another_are_compared_with_it() -> None:
    new = items(wide(other=1), wide(other=1), wide(other=2), wide(other=1))
    found = diff(items(wide(other=1)), new)
    assert diff_text(found).splitlines() == [
        "+ child[1-3]: Wide like child[0]",
        "~ child[2].other: 1 -> 2",
    ]
    assert [one.new.value for one in found if isinstance(one, PartAdded)] == new.child[1:]


def test_items_that_share_less_than_the_one_they_resemble() -> None:
    """Two layers with a table of positions each, where one was for all."""

    def layer(table: Any) -> fdl.Partial:
        return fdl.Partial(Wide, Width.new(), child=fdl.ArgFactory(Outer, child=table))

    table, number = fdl.Config(Square), fdl.Config(scaled, number=10)
    like = "+ child[1]: Wide like child[0]"
    assert lines(items(layer(number)), items(layer(number), layer(clone(number)))) == [like]
    assert lines(items(layer(table)), items(layer(table), layer(table))) == [like]
    assert lines(items(layer(table)), items(layer(table), layer(fdl.Config(Square)))) == [
        like,
        "& child[1].child.child: an equal Square of its own, not child[0].child.child",
    ]


def test_changes_of_an_item_do_not_explain_those_of_the_one_it_resembles() -> None:
    def layer(tag: Any, width: int) -> fdl.Config:
        part = fdl.Config(Part)
        fdl.add_tag(part, "width", tag)
        return fdl.Config(Outer, width=Width.new(width), depth=Depth.new(7), child=part)

    found = lines(items(layer(Width, 5)), items(layer(Depth, 5), layer(Width, 6)))
    source = "5 (inherited from child[0].width) -> 7 (inherited from child[0].depth)"
    assert found[:2] == [
        "~ child[0].child.width: no longer tagged Width, tagged Depth",
        f"~ child[0].child.width: {source}",
    ]


def test_entries_of_dicts_go_by_their_keys() -> None:
    old = fdl.Config(Outer, child={"a": fdl.Config(Square), "b": fdl.Config(Square)})
    new = fdl.Config(Outer, child={"c": fdl.Config(Square), "b": fdl.Config(Square, 2)})
    assert sorted(lines(old, new)) == [
        "+ child['c']: Square()",
        "- child['a']: Square()",
        "~ child['b'].width: 1 (default) -> 2",
    ]


def test_changes_that_items_have_in_common_are_one_line() -> None:
    old = items(*(wide(child=[wide(), wide()]) for _ in range(4)))
    new = clone(old)
    for i in (0, 1, 2):
        new.child[i].child[1].other = 7
    assert lines(old, new) == ["~ child[0-2].child[1].other: None (default) -> 7"]
    new.child[3].child[0].other = 7
    assert len(lines(old, new)) == 4
    keys = ("a[]", "x[1]", "x[2]")  # whose brackets are no index
    old, new = (items({key: fdl.Config(Square, one) for key in keys}) for one in (2, 3))
    assert lines(old, new) == [f"~ child[0][{key!r}].width: 2 -> 3" for key in keys]


def test_nested_lists_are_walked_once() -> None:
    def graph(rate: float) -> fdl.Config:
        held: Any = fdl.Config(Outer, rate=rate)
        for _ in range(60):
            held = [held, held]
        return fdl.Config(Outer, child=held)

    assert len(diff(graph(0.1), graph(0.2))) == 1


def random_graph(rng: random.Random, num_parts: int = 6) -> fdl.Config:
    """Return a graph in which anything may hold and share anything that was made before."""
    made: list[Any] = [fdl.Config(Square, rng.randint(1, 2))]
    for _ in range(num_parts):
        held = [rng.choice(made) for _ in range(rng.randint(1, 3))]
        kind = rng.choice([fdl.Config, fdl.Partial])
        match rng.randint(0, 3):
            case 0:
                made.append(kind(holding, held))
            case 1:
                made.append(kind(pair, *held[:2]))
            case 2:
                made.append(fdl.Config(Outer, child=held[0], other={"a": held[-1], "b": 1}))
            case _:
                made.append(fdl.Config(rng.choice([Part, Wide]), Width.new(), child=held[0]))
    return fdl.Config(Outer, width=Width.new(rng.randint(1, 2)), child=made[-1], other=made[-2])


def change_something(rng: random.Random, part: Any) -> None:
    """Change a value, a node, a tag or what is shared; sometimes nothing."""
    name = rng.choice([key for key in fdl.ordered_arguments(part) if isinstance(key, str)])
    match rng.randint(0, 4):
        case 0 if fdl.get_callable(part) is not holding:
            setattr(part, name, 5)
        case 1:
            fdl.add_tag(part, name, Rate)
        case 2 if isinstance(getattr(part, name), fdl.Buildable):
            setattr(part, name, clone(getattr(part, name)))
        case 3 if isinstance(getattr(part, name), list):
            getattr(part, name).reverse()
        case _:
            pass
