"""What `bind` refuses: a quantity that nobody says, and one that is said in two ways."""

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigErrors, bind, build

from .parts import Depth, InnerWidth, Outer, Part, Rate, Width, pair, scaled


def mistakes(cfg: fdl.Buildable) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        bind(cfg)
    return caught.value.messages


def test_nobody_says_it() -> None:
    cfg = fdl.Config(Outer, child=fdl.Config(Outer, child=fdl.Config(Part, width=Width.new())))
    (message,) = mistakes(cfg)
    assert message.splitlines() == [
        "child.child.width hears Width, and no part around it says Width.",
        "  Say it for one part alone:  set:child.child.width=...",
        "  or for all that is inside:  cfg.child.<parameter> = Width.new(...)",
    ]


def test_both_remedies_that_it_names_help() -> None:
    cfg = fdl.Config(Outer, child=fdl.Config(Part, width=Width.new()))
    assert mistakes(cfg)
    cfg.width = Width.new(3)
    assert build(cfg).child.width == 3
    del cfg.width
    cfg.child.width = 4
    assert build(cfg).child.width == 4


def test_all_mistakes_are_found_at_once() -> None:
    one, two = fdl.Config(Part, width=Width.new()), fdl.Config(Part, width=Depth.new())
    found = mistakes(fdl.Config(Outer, child=[one], other={"a": two}))
    assert [message.split()[0] for message in found] == ["child[0].width", "other['a'].width"]


def test_a_quantity_that_many_hear_is_one_mistake() -> None:
    hearers = [[fdl.Config(Part, width=Width.new()) for _ in range(4)]]
    (message,) = mistakes(fdl.Config(Outer, child=fdl.Config(Outer, child=hearers)))
    assert message.splitlines() == [
        "child.child[0][0].width, child.child[0][1].width and 2 more hear Width, "
        "and no part around them says Width.",
        "  Say it for one part alone:  set:child.child[0][0].width=...",
        "  or for all that is inside:  cfg.child.<parameter> = Width.new(...)",
    ]
    shared = fdl.Config(pair, [fdl.Config(Part, width=Width.new()) for _ in range(3)])
    cfg = fdl.Config(
        pair,
        fdl.Config(Outer, width=Width.new(3), child=shared),
        fdl.Config(Outer, width=Width.new(5), child=shared),
    )
    (message,) = mistakes(cfg)
    assert "first.child.first[1].width and 1 more hear Width" in message


def test_a_shared_part_cannot_hear_two_values() -> None:
    shared = fdl.Config(Part, width=Width.new())
    cfg = fdl.Config(
        pair,
        fdl.Config(Outer, width=Width.new(3), child=shared),
        fdl.Config(Outer, width=Width.new(5), child=[shared]),
    )
    (message,) = mistakes(cfg)
    assert message.splitlines() == [
        "first.child.width hears Width, of which there are two values:",
        "  through first.child: 3, said by first.width",
        "  through second.child[0]: 5, said by second.width",
        "  Both reach one Part. Say it there:  set:first.child.width=..., "
        "or give each place its own Part.",
    ]


def test_nor_hear_it_in_one_place_alone() -> None:
    shared = fdl.Config(Part, width=Width.new())
    cfg = fdl.Config(pair, fdl.Config(Outer, width=Width.new(3), child=shared), shared)
    (message,) = mistakes(cfg)
    assert "through second: nobody says it" in message


def test_what_is_below_the_shared_part_is_refused_too() -> None:
    shared = fdl.Config(Outer, child=[fdl.Config(Part, width=Width.new())])
    cfg = fdl.Config(
        pair,
        fdl.Config(Outer, width=Width.new(3), child=shared),
        fdl.Config(Outer, width=Width.new(5), child=shared),
    )
    (message,) = mistakes(cfg)
    assert message.startswith("first.child.child[0].width hears Width")
    assert "Both reach one Outer." in message


def test_a_shared_list_is_a_shared_place() -> None:
    shared = [fdl.Config(Part, width=Width.new())]
    cfg = fdl.Config(
        pair,
        fdl.Config(Outer, width=Width.new(3), child=shared),
        fdl.Config(Outer, width=Width.new(5), child=shared),
    )
    assert "of which there are two values" in mistakes(cfg)[0]


def test_saying_it_in_the_shared_part_settles_it() -> None:
    shared = fdl.Config(Outer, width=Width.new(9), child=fdl.Config(Part, width=Width.new()))
    cfg = fdl.Config(
        pair,
        fdl.Config(Outer, width=Width.new(3), child=shared),
        fdl.Config(Outer, width=Width.new(5), child=shared),
    )
    one, two = build(cfg)
    assert one.child is two.child
    assert one.child.child.width == 9


@pytest.mark.parametrize("value", [3, 0.5, None, "text", (1, 2), [3, 4]])
def test_equal_values_are_one(value: object) -> None:
    shared = fdl.Config(pair, Width.new())
    cfg = fdl.Config(pair, *(fdl.Config(pair, Width.new(value), shared) for _ in range(2)))
    assert build(cfg)[0][1][0] == value


@pytest.mark.parametrize(("one", "two"), [(1, 1.0), (1, True), (0, None)])
def test_values_of_different_types_are_two(one: object, two: object) -> None:
    shared = fdl.Config(pair, Width.new())
    cfg = fdl.Config(pair, *(fdl.Config(pair, Width.new(value), shared) for value in (one, two)))
    assert "of which there are two values" in mistakes(cfg)[0]


def test_computed_values_are_one_only_if_they_are_one_part() -> None:
    def graph(*said: fdl.Config) -> fdl.Config:
        shared = fdl.Config(Part, width=Width.new())
        return fdl.Config(pair, *(fdl.Config(Outer, Width.new(one), child=shared) for one in said))

    half = fdl.Config(scaled, number=8)
    assert build(graph(half, half))[0].child.width == 4
    (message,) = mistakes(graph(half, fdl.Config(scaled, number=8)))
    assert "scaled(...), said by first.width" in message


def test_one_way_says_the_tag_and_the_other_its_base() -> None:
    shared = fdl.Config(Part, width=InnerWidth.new())
    near = fdl.Config(Outer, width=InnerWidth.new(3), child=shared)
    far = fdl.Config(Outer, width=Width.new(3), child=shared)
    assert build(fdl.Config(pair, near, far))[1].child.width == 3
    far.width = 5
    assert "of which there are two values" in mistakes(fdl.Config(pair, near, far))[0]


def test_two_arguments_of_one_part_cannot_say_it_differently() -> None:
    cfg = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, width=Width.new()))
    cfg.depth = Width.new(5)
    (message,) = mistakes(cfg)
    assert message.splitlines() == [
        "child.width hears Width, of which there are two values:",
        "  3, said by width",
        "  5, said by depth",
        "  Say it there:  set:child.width=...",
    ]


def test_a_conflict_that_nobody_hears_is_none() -> None:
    shared = fdl.Config(Part, width=2)
    cfg = fdl.Config(
        pair,
        fdl.Config(Outer, width=Width.new(3), rate=Rate.new(0.1), child=shared),
        fdl.Config(Outer, width=Width.new(5), rate=Rate.new(0.2), child=shared),
    )
    assert build(cfg)[0].child.width == 2
