"""`bind`: unset parameters inherit from the nearest enclosing node, as names in Python do."""

import copy
import pickle
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import (
    ConfigError,
    ConfigErrors,
    bind,
    build,
    clone,
    dump,
    find_parameter,
    fingerprint,
    outline,
    resolve,
)

from . import parts
from .parts import (
    Depth,
    InnerWidth,
    Outer,
    Part,
    Rate,
    Width,
    pair,
    positional,
    product,
    scaled,
)


def part(tag: Any = Width, **arguments: Any) -> fdl.Config[Part]:
    return fdl.Config(Part, width=tag.new(), **arguments)


def outer(child: Any, width: Any = 3, **arguments: Any) -> fdl.Config[Outer]:
    return fdl.Config(Outer, width=Width.new(width), child=child, **arguments)


def errors(cfg: fdl.Buildable) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        bind(cfg)
    return caught.value.messages


def test_the_nearest_enclosing_node_that_sets_a_tag_binds_it() -> None:
    between = fdl.Config(Outer, depth=Depth.new(7), child=outer(part(), 5))
    built = build(outer(between, other=[{"a": (part(),)}, Width.new(), Width.new(9)]))
    assert built.child.child.child.width == 5
    assert built.other[0]["a"][0].width == 3
    assert built.other[1:] == [3, 9]


def test_an_explicit_value_wins_and_stays_local() -> None:
    cfg = outer(part(child=part()), other=part())
    cfg.child.width = 128
    built = build(cfg)
    assert (built.child.width, built.child.child.width, built.other.width) == (128, 128, 3)


def test_a_default_applies_where_no_node_sets_the_tag() -> None:
    cfg = fdl.Config(pair, fdl.Config(Outer, rate=Rate.new(), depth=Depth.new()))
    assert build(cfg)[0].rate == 0.0
    assert bind(cfg).first.depth == 0, "a bound graph has a value for every tagged parameter"


def test_a_derived_tag_inherits_from_its_base_and_not_the_other_way_round() -> None:
    assert build(outer(part(InnerWidth))).child.width == 3
    far = fdl.Config(Outer, width=InnerWidth.new(9), child=outer(part(InnerWidth)))
    assert build(far).child.child.width == 3, "a nearer base hides a farther derived tag"
    near = fdl.Config(Outer, width=InnerWidth.new(9), child=[part(InnerWidth), part()])
    assert [leaf.width for leaf in build(outer(near)).child.child] == [9, 3]
    near.child = part()
    assert "no enclosing node sets Width" in errors(near)[0]


def test_two_tags_on_one_parameter_must_agree() -> None:
    leaf = part()
    fdl.add_tag(leaf, "width", Depth)
    assert build(fdl.Config(Outer, depth=Depth.new(4), child=leaf)).child.width == 4
    assert build(outer(leaf, 5)).child.width == 5
    assert build(outer(leaf, 4, depth=Depth.new(4))).child.width == 4
    (message,) = errors(outer(leaf, 5, depth=Depth.new(4)))
    assert message.startswith("child.width inherits Depth and Width, which has two values:")


class TestComputed:
    """A value may be a deferred call; it is computed in the scope of the argument that sets it."""

    def test_once_in_the_scope_of_the_argument(self) -> None:
        inner = fdl.Config(pair, *(fdl.Config(pair, Depth.new()) for _ in range(2)))
        depth = Depth.new(fdl.Config(pair, Width.new()))
        built = build(outer(outer(inner, 5), other=depth))
        assert built.other == (3, None)
        assert all(one[0] is built.other for one in built.child.child)

    def test_an_argument_is_outside_its_own_scope(self) -> None:
        half = fdl.Config(scaled, number=Width.new())
        assert build(outer(fdl.Config(Part, width=Width.new(half)), 8)).child.width == 4

    def test_a_default_inside_does_not_depend_on_who_inherits(self) -> None:
        depth = Depth.new(fdl.Config(scaled, number=8, ratio=Rate.new()))
        inner = fdl.Config(Outer, rate=Rate.new(0.25), child=part(Depth))
        cfg = fdl.Config(Outer, depth=depth, child=inner)
        assert bind(cfg).depth.ratio == 0.5
        assert build(bind(cfg)).depth == 4


@pytest.mark.parametrize("kind", [fdl.Config, fdl.Partial])
def test_factories_inherit_too(kind: Any) -> None:
    leaf = fdl.ArgFactory(Part, width=Width.new(), child=fdl.ArgFactory(Part, Width.new()))
    block = fdl.Partial(Outer, depth=Depth.new(), child=leaf)
    cfg = kind(Outer, width=Width.new(3), depth=Depth.new(2), child=block)
    built = build(cfg) if kind is fdl.Config else build(cfg)()
    one, two = built.child(), built.child()
    assert (one.depth, one.child.width, one.child.child.width) == (2, 3, 3)
    assert one.child is not two.child


@pytest.mark.parametrize(
    ("child", "expected"),
    [
        (fdl.Config(positional, Width.new()), (3, 2)),
        (fdl.Config(product, Width.new(), 2), 6),
        (fdl.Config(parts.keywords, a=Width.new(), b=2), {"a": 3, "b": 2}),
    ],
)
def test_arguments_without_a_name_inherit(child: fdl.Config, expected: Any) -> None:
    assert build(outer(child)).child == expected


def test_the_graph_itself_is_left_alone() -> None:
    cfg = outer([part()])
    before, held = outline(cfg), cfg.child
    bound = bind(cfg)
    copied = clone(bound)
    copied.child[0].width = 99
    copied.child.append(1)
    assert outline(cfg) == before and bound.child[0].width != 99
    assert cfg.child is held
    assert len(held) == 1


def test_a_bound_graph_refuses_changes_and_names_where_to_make_them() -> None:
    cfg = outer([part()])
    bound = bind(cfg)
    path = r"^child\[0\].width cannot change, because this graph is bound"
    remedy = "It inherits its value from width: set that. Change the graph that was bound"
    with pytest.raises(ConfigError, match=f"{path}. {remedy}"):
        bound.child[0].width = 99
    with pytest.raises(ConfigError, match=f"{path}.*, and bind it again.$"):
        del bound.child[0].width
    with pytest.raises(ConfigError, match="^width cannot change, .* is bound. Change the graph"):
        find_parameter(bound, "width").set(5)
    assert bound.child[0].width == bound.width and fingerprint(bound) == fingerprint(cfg)
    for copied in (clone(bound), copy.deepcopy(bound), pickle.loads(pickle.dumps(bound))):
        copied.width = 99
        fdl.add_tag(copied.child[0], "width", Rate)
        assert bind(copied).width == 99
        assert bind(copied).child[0].width == bound.width  # what was inherited is set in a copy
        assert fdl.get_tags(copied.child[0], "width") == {Width, Rate}
    cfg.width = 7
    assert bind(cfg).child[0].width == 7


def test_binding_twice_changes_nothing() -> None:
    half = fdl.Config(scaled, number=Width.new(), ratio=Rate.new())
    inner = fdl.Config(Outer, rate=Rate.new(0.1), child=part(Depth))
    once = bind(outer(inner, 8, depth=Depth.new(half)))
    assert dump(bind(once)) == dump(once)
    assert resolve(once) == []


class TestUnset:
    """Tags that no enclosing node sets."""

    def test_all_errors_are_found_at_once_and_those_of_one_tag_are_one(self) -> None:
        found = errors(fdl.Config(Outer, child=[part(), part(), part()], other={"a": part(Depth)}))
        assert [message.splitlines()[0] for message in found] == [
            "child[0].width, child[1].width and 1 more inherit Width, "
            "but no enclosing node sets Width.",
            "other['a'].width inherits Depth, but no enclosing node sets Depth.",
        ]


class TestConflicts:
    """Tags that have two values."""

    @staticmethod
    def two(shared: Any, *widths: Any) -> fdl.Config:
        return fdl.Config(pair, *(outer(shared, width) for width in widths))

    def test_a_shared_node_cannot_inherit_two_values(self) -> None:
        shared = part()
        (message,) = errors(fdl.Config(pair, outer(shared), shared))
        assert "through second: unset" in message

    @pytest.mark.parametrize("hold", [lambda one: fdl.Config(Outer, child=[one]), lambda x: [x]])
    def test_nor_can_what_is_below_it_or_in_a_shared_list(self, hold: Any) -> None:
        assert "which has two values" in errors(self.two(hold(part()), 3, 5))[0]

    @pytest.mark.parametrize("value", [3, 0.5, None, "text", (1, 2), [3, 4]])
    def test_equal_values_are_one(self, value: object) -> None:
        shared = fdl.Config(pair, Width.new())
        cfg = fdl.Config(pair, *(fdl.Config(pair, Width.new(value), shared) for _ in range(2)))
        assert build(cfg)[0][1][0] == value

    def test_computed_values_are_one_only_if_they_are_one_node(self) -> None:
        half = fdl.Config(scaled, number=8)
        assert build(self.two(part(), half, half))[0].child.width == 4
        (message,) = errors(self.two(part(), half, fdl.Config(scaled, number=8)))
        assert "scaled(...), set by first.width" in message
