"""Finding nodes, setting tags and swapping what nodes call."""

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, build, find, set_tag, swapped, tagged

from . import namesakes
from .parts import (
    Depth,
    InnerWidth,
    Outer,
    Part,
    Rate,
    Square,
    Wide,
    Width,
    double,
    keywords,
    pair,
    product,
)


def test_find_gives_each_part_once_and_its_subclasses() -> None:
    shared = fdl.Config(Part, width=1)
    wide = fdl.ArgFactory(Wide, width=1)
    cfg = fdl.Config(pair, [shared, shared, fdl.Partial(Outer, child=wide)])
    assert find(cfg, Part) == [shared, wide]
    assert find(cfg, Wide) == [wide]
    assert len(find(cfg, Wide, Outer)) == 2
    assert find(cfg, pair) == [cfg]


def test_finding_nothing_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="^pair holds no Square or double, so there is nothing"):
        find(fdl.Config(pair), Square, double)


def test_a_tag_is_set_where_it_is_set() -> None:
    heir = fdl.Config(Part, width=Width.new())
    local = fdl.Config(Part, width=Width.new(7))
    cfg = fdl.Config(Outer, width=Width.new(3), child=[heir, local])
    assert set_tag(cfg, Width, 5) == 2
    assert "width" not in fdl.ordered_arguments(heir), "it still inherits"
    assert [one.width for one in build(cfg).child] == [5, 5]


def test_derived_tags_are_set_too() -> None:
    cfg = fdl.Config(pair, InnerWidth.new(1), Depth.new(2))
    assert set_tag(cfg, Width, 9) == 1
    assert build(cfg) == (9, 2)
    assert len(tagged(cfg, fdl.Tag)) == 2


def test_a_tag_that_nothing_sets_is_set_where_it_is_inherited() -> None:
    cfg = fdl.Config(pair, fdl.Config(Outer, rate=Rate.new()))
    assert set_tag(cfg, Rate, 0.5) == 1
    assert build(cfg)[0].rate == 0.5


def test_unnamed_arguments_and_elements_of_lists() -> None:
    cfg = fdl.Config(pair, fdl.Config(product, Width.new(2), 3), [Width.new(4)])
    assert set_tag(cfg, Width, 10) == 2
    assert build(cfg) == (30, [10])
    settings = fdl.Config(keywords, a=Width.new(1))
    set_tag(settings, Width, 2)
    assert build(settings) == {"a": 2}


def test_a_tag_that_nothing_carries_is_a_mistake() -> None:
    with pytest.raises(ConfigError) as caught:
        set_tag(fdl.Config(Outer, width=Width.new(3)), Rate, 0.1)
    assert str(caught.value) == (
        "no parameter of Outer carries the tag Rate, so nothing would change. There is Width."
    )
    with pytest.raises(ConfigError) as caught:
        set_tag(fdl.Config(Outer, width=Width.new(3)), namesakes.Width, 0.1)
    known = f"{Width.__module__}.Width"
    assert str(caught.value) == (
        f"no parameter of Outer carries the tag {namesakes.__name__}.Width, so nothing would "
        f"change. Another tag has that name, {known}: write tag:{known}=..., or give a "
        "parameter your tag first."
    )


class TestSwapped:
    """A part in the place of another keeps what both know."""

    def test_values_tags_and_parts_go_along(self) -> None:
        inside = fdl.Config(Square)
        old = fdl.ArgFactory(Part, width=Width.new(), child=inside)
        fdl.add_tag(old, "other", Depth)
        new = swapped(old, Wide)
        assert isinstance(new, fdl.ArgFactory)
        assert new.child is inside
        assert "width" not in fdl.ordered_arguments(new)
        assert fdl.get_tags(new, "width") == {Width}
        assert fdl.get_tags(new, "other") == {Depth}

    def test_what_the_new_one_does_not_take_is_left_behind(self) -> None:
        new = swapped(fdl.Config(Outer, width=3, depth=4), Part)
        assert fdl.ordered_arguments(new) == {"width": 3}
        assert fdl.ordered_arguments(swapped(new, keywords)) == {}

    def test_the_old_one_stays_as_it_was(self) -> None:
        old = fdl.Config(Part, width=3)
        swapped(old, Wide).width = 9
        assert old.width == 3
