"""`bind`: open quantities hear the nearest that is said, as names in Python do."""

import copy
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigErrors, bind, build, dump, outline, resolve

from .parts import (
    Depth,
    InnerWidth,
    Outer,
    Part,
    Rate,
    Wide,
    Width,
    double,
    keywords,
    pair,
    positional,
    product,
    scaled,
)


def test_an_open_quantity_hears_the_part_around_it() -> None:
    cfg = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, width=Width.new()))
    assert build(cfg).child.width == 3


def test_the_nearest_part_that_says_it_is_heard() -> None:
    inner = fdl.Config(Outer, width=Width.new(5), child=fdl.Config(Part, width=Width.new()))
    between = fdl.Config(Outer, depth=Depth.new(7), child=inner)
    cfg = fdl.Config(Outer, width=Width.new(3), child=between, other=fdl.Config(Part, Width.new()))
    built = build(cfg)
    assert built.child.child.child.width == 5
    assert built.other.width == 3


def test_through_lists_tuples_and_dicts() -> None:
    leaf = fdl.Config(Part, width=Width.new())
    cfg = fdl.Config(Outer, width=Width.new(3), child=[{"a": (leaf,)}])
    assert build(cfg).child[0]["a"][0].width == 3


def test_an_explicit_value_wins_and_stays_local() -> None:
    moved, follower = (fdl.Config(Part, width=Width.new(), child=None) for _ in range(2))
    moved.child = fdl.Config(Part, width=Width.new())
    cfg = fdl.Config(Outer, width=Width.new(3), child=moved, other=follower)
    cfg.child.width = 128
    built = build(cfg)
    assert (built.child.width, built.child.child.width, built.other.width) == (128, 128, 3)


def test_none_is_a_value_that_can_be_said() -> None:
    hearer = fdl.Config(pair, Rate.new())
    cfg = fdl.Config(Outer, rate=Rate.new(0.1), child=fdl.Config(pair, Rate.new(None), hearer))
    assert build(cfg).child == (None, (None, None))
    cfg.child.first = 0.2
    hearer.first = None
    assert build(cfg).child == (0.2, (None, None))


def test_two_models_keep_their_own_width() -> None:
    def model(width: int) -> fdl.Config[Outer]:
        return fdl.Config(Outer, width=Width.new(width), child=fdl.Config(Part, Width.new()))

    built = build(fdl.Config(pair, first=model(768), second=model(256)))
    assert [one.child.width for one in built] == [768, 256]


def test_where_nobody_says_it_a_default_stands() -> None:
    cfg = fdl.Config(pair, fdl.Config(Outer, rate=Rate.new(), depth=Depth.new()))
    assert build(cfg)[0].rate == 0.0
    assert bind(cfg).first.depth == 0, "a bound graph has a value for every tagged parameter"


def test_a_tag_is_heard_by_those_that_inherit_from_it() -> None:
    cfg = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, width=InnerWidth.new()))
    assert build(cfg).child.width == 3


def test_a_tag_is_not_heard_by_its_base() -> None:
    cfg = fdl.Config(Outer, width=InnerWidth.new(3), child=fdl.Config(Part, width=Width.new()))
    with pytest.raises(ConfigErrors, match="no part around it says Width"):
        bind(cfg)


def test_a_nearer_base_hides_a_farther_heir() -> None:
    near = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, width=InnerWidth.new()))
    cfg = fdl.Config(Outer, width=InnerWidth.new(9), child=near)
    assert build(cfg).child.child.width == 3


def test_a_nearer_heir_leaves_the_base_alone() -> None:
    leaves = [fdl.Config(Part, width=InnerWidth.new()), fdl.Config(Part, width=Width.new())]
    near = fdl.Config(Outer, width=InnerWidth.new(9), child=leaves)
    built = build(fdl.Config(Outer, width=Width.new(3), child=near))
    assert [leaf.width for leaf in built.child.child] == [9, 3]


def test_two_tags_on_one_parameter() -> None:
    part = fdl.Config(Part)
    fdl.add_tag(part, "width", Width)
    fdl.add_tag(part, "width", Depth)
    assert build(fdl.Config(Outer, depth=Depth.new(4), child=part)).child.width == 4
    assert build(fdl.Config(Outer, width=Width.new(5), child=part)).child.width == 5
    same = fdl.Config(Outer, width=Width.new(4), depth=Depth.new(4), child=part)
    assert build(same).child.width == 4
    different = fdl.Config(Outer, width=Width.new(5), depth=Depth.new(4), child=part)
    with pytest.raises(ConfigErrors, match="hears Depth and Width, of which there are two"):
        bind(different)


class TestComputed:
    """A value may be a deferred call; it is computed where it is said."""

    def test_in_the_scope_of_the_place_that_says_it(self) -> None:
        depth = Depth.new(fdl.Config(double, Width.new()))
        inner = fdl.Config(Outer, width=Width.new(5), child=fdl.Config(Part, width=Depth.new()))
        built = build(fdl.Config(Outer, width=Width.new(3), depth=depth, child=inner))
        assert (built.depth, built.child.child.width) == (6, 6)

    def test_once_for_all_who_hear_it(self) -> None:
        said = Depth.new(fdl.Config(pair, Width.new()))
        hearers = [fdl.Config(pair, Depth.new()) for _ in range(2)]
        cfg = fdl.Config(pair, said, fdl.Config(pair, *hearers))
        computed, (one, two) = build(fdl.Config(Outer, width=Width.new(3), child=cfg)).child
        assert one[0] is two[0] is computed

    def test_an_argument_does_not_hear_itself(self) -> None:
        half = fdl.Config(scaled, number=Width.new())
        cfg = fdl.Config(Outer, width=Width.new(8), child=fdl.Config(Part, width=Width.new(half)))
        assert build(cfg).child.width == 4

    def test_a_default_inside_is_not_swayed_by_who_hears_it(self) -> None:
        depth = Depth.new(fdl.Config(scaled, number=8, ratio=Rate.new()))
        hearer = fdl.Config(Outer, rate=Rate.new(0.25), child=fdl.Config(Part, width=Depth.new()))
        cfg = fdl.Config(Outer, depth=depth, child=hearer)
        assert bind(cfg).depth.ratio == 0.5
        assert build(bind(cfg)).depth == 4

    def test_an_override_of_its_input_moves_it(self) -> None:
        cfg = fdl.Config(
            Outer, width=Width.new(3), depth=Depth.new(fdl.Config(double, Width.new()))
        )
        cfg.width = 10
        assert build(cfg).depth == 20
        cfg.depth = 7
        assert build(cfg).depth == 7

    def test_quantities_computed_from_each_other_are_refused(self) -> None:
        cfg = fdl.Config(
            Outer,
            width=Width.new(fdl.Config(double, Depth.new())),
            depth=Depth.new(fdl.Config(double, Width.new())),
        )
        with pytest.raises(ValueError, match="double.*contains itself"):
            bind(cfg)


class TestFactories:
    """Scopes do not care how a part is called, or when."""

    @pytest.mark.parametrize("kind", [fdl.Config, fdl.Partial])
    def test_in_the_argument_factories_of_a_partial(self, kind: Any) -> None:
        leaf = fdl.ArgFactory(Part, width=Width.new(), child=fdl.ArgFactory(Part, Width.new()))
        block = fdl.Partial(Outer, depth=Depth.new(), child=leaf)
        cfg = kind(Outer, width=Width.new(3), depth=Depth.new(2), child=block)
        built = build(cfg) if kind is fdl.Config else build(cfg)()
        one, two = built.child(), built.child()
        assert (one.depth, one.child.width, one.child.child.width) == (2, 3, 3)
        assert one.child is not two.child

    def test_a_partial_may_leave_an_argument_to_its_caller_but_no_quantity(self) -> None:
        assert build(fdl.Partial(Part, child=None))(width=4).width == 4
        with pytest.raises(ConfigErrors, match="width hears Width"):
            bind(fdl.Partial(Part, width=Width.new()))


class TestUnnamed:
    """Positional arguments, `*args` and `**kwargs` carry tags too."""

    def test_a_positional_argument(self) -> None:
        cfg = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(positional, Width.new()))
        assert build(cfg).child == (3, 2)
        cfg = fdl.Config(pair, fdl.Config(positional, Width.new(4), depth=Width.new()))
        assert build(cfg)[0] == (4, 4)

    @pytest.mark.parametrize(
        ("factors", "expected"),
        [
            ((Width.new(), 2), 6),
            ((2, Width.new()), 6),
            ((2, Width.new(), 5), 30),
            ((Width.new(), Width.new()), 9),
            ((Width.new(4), 2), 8),
        ],
    )
    def test_elements_of_args(self, factors: tuple[Any, ...], expected: int) -> None:
        cfg = fdl.Config(Outer, width=Width.new(3), depth=fdl.Config(product, *factors))
        assert build(cfg).depth == expected

    def test_parts_after_an_open_element_of_args_are_bound(self) -> None:
        cfg = fdl.Config(product, Width.new(), fdl.Config(double, Width.new()))
        assert build(fdl.Config(Outer, width=Width.new(3), depth=cfg)).depth == 18

    def test_names_in_kwargs(self) -> None:
        settings = fdl.Config(keywords, a=Width.new(), b=2)
        cfg = fdl.Config(Outer, width=Width.new(3), child=settings)
        assert build(cfg).child == {"a": 3, "b": 2}

    def test_quantities_in_a_list(self) -> None:
        cfg = fdl.Config(Outer, width=Width.new(3), child=[Width.new(), 2, Width.new(9)])
        assert build(cfg).child == [3, 2, 9]


class TestManners:
    """What `bind` leaves alone."""

    def test_it_does_not_change_its_input(self) -> None:
        cfg = fdl.Config(Outer, width=Width.new(3), child=[fdl.Config(Part, width=Width.new())])
        before, held = outline(cfg), cfg.child
        bound = bind(cfg)
        bound.child[0].width = 99
        bound.child.append(1)
        assert outline(cfg) == before
        assert cfg.child is held
        assert len(held) == 1

    def test_sharing_is_kept(self) -> None:
        shared = fdl.Config(Part, width=Width.new())
        cfg = fdl.Config(Outer, width=Width.new(3), child=shared, other=[shared])
        bound = bind(cfg)
        assert bound.child is bound.other[0]
        assert bound.child is not shared

    def test_twice_is_once(self) -> None:
        half = fdl.Config(scaled, number=Width.new(), ratio=Rate.new())
        inner = fdl.Config(Outer, rate=Rate.new(0.1), child=fdl.Config(Part, width=Depth.new()))
        cfg = fdl.Config(Outer, width=Width.new(8), depth=Depth.new(half), child=inner)
        once = bind(cfg)
        assert dump(bind(once)) == dump(once)
        assert resolve(once) == []

    def test_order_of_changes_does_not_matter(self) -> None:
        def widen(cfg: Any) -> None:
            cfg.width = 64

        def swap(cfg: Any) -> None:
            cfg.child = fdl.Config(Wide, width=Width.new())

        def local(cfg: Any) -> None:
            cfg.depth = Depth.new(fdl.Config(double, Width.new()))

        texts = set()
        for changes in ([widen, swap, local], [swap, local, widen], [local, widen, swap]):
            cfg = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, width=Width.new()))
            for change in changes:
                change(cfg)
            texts.add(dump(bind(cfg)))
        assert len(texts) == 1

    def test_a_leaf_that_cannot_be_copied_is_no_hindrance(self) -> None:
        class Stubborn:
            def __deepcopy__(self, memo: Any) -> Any:
                raise TypeError("cannot be copied")

        leaf = Stubborn()
        with pytest.raises(TypeError):
            copy.deepcopy(leaf)
        assert bind(fdl.Config(pair, leaf)).first is leaf
