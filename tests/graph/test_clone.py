"""Copies: what was one node stays one node, and nothing else is shared with the original."""

import collections
from typing import Any

import fiddle as fdl

from fidgpt.graph import bind, build, clone, clone_part, dump, outline

from .parts import Outer, Part, Size, Width, double, pair, product


def test_a_copy_shares_within_itself_and_not_with_the_original() -> None:
    shared = fdl.Config(Part, width=Width.new())
    cfg = fdl.Config(Outer, width=Width.new(3), child=[shared, (shared,)], other={"a": shared})
    copied = clone(cfg)
    assert copied.child[0] is copied.child[1][0] is copied.other["a"]
    assert copied.child[0] is not shared
    copied.child[0].width = 7
    copied.child.append(1)
    copied.other["b"] = 2
    fdl.add_tag(copied, "depth", Width)
    assert "width: 3  <- width" in outline(cfg)
    assert len(cfg.child) == 2
    assert set(cfg.other) == {"a"}
    assert fdl.get_tags(cfg, "depth") == frozenset()


def test_a_copy_is_the_same_graph() -> None:
    cfg = fdl.Partial(
        Outer,
        width=Width.new(3),
        depth=fdl.Config(product, Width.new(), 2),
        child=fdl.ArgFactory(Part, width=Width.new(), child=[Width.new()]),
    )
    assert dump(clone(cfg)) == dump(cfg)


def test_plain_values_are_not_copied() -> None:
    leaf = object()
    assert clone(fdl.Config(pair, [leaf])).first[0] is leaf
    assert clone(leaf) is leaf


def test_containers_keep_their_type() -> None:
    part = fdl.Config(Part, width=1)
    for value in (
        Size(part, part),  # type: ignore[arg-type]
        collections.OrderedDict(a=part),
        collections.defaultdict(list, a=part),
        (part,),
    ):
        copied: Any = clone(fdl.Config(pair, value)).first
        assert type(copied) is type(value)
        assert len(copied) == len(value)


def test_history_is_kept() -> None:
    cfg = fdl.Config(Part, width=1)
    cfg.width = 2
    assert len(clone(cfg).__argument_history__["width"]) == 2


class TestPart:
    """`clone_part` keeps what is built once, and copies what a factory makes anew."""

    def block(self) -> fdl.Partial:
        shared = fdl.Config(Part, width=Width.new())
        fresh = fdl.ArgFactory(Part, width=fdl.Config(double, Width.new()), child=shared)
        return fdl.Partial(Part, width=Width.new(), child=fresh, other=[shared])

    def test_what_is_built_once_is_held_by_both(self) -> None:
        block = self.block()
        copied = clone_part(block)
        assert copied.child.child is block.child.child is copied.other[0]
        assert copied.child is not block.child
        assert copied.other is not block.other
        one, two = build(fdl.Config(Outer, width=Width.new(3), child=[block, copied])).child
        assert one().child.child is two().child.child

    def test_one_copy_can_be_changed_alone(self) -> None:
        block = self.block()
        copied = clone_part(block)
        copied.child.width.number = 50
        bound = bind(fdl.Config(Outer, width=Width.new(3), child=[block, copied]))
        assert [one.child.width.number for one in bound.child] == [3, 50]

    def test_the_part_itself_is_copied_even_if_it_is_built_once(self) -> None:
        table = fdl.Config(Part, width=1, child=fdl.Config(Part, width=2))
        copied = clone_part(table)
        assert copied is not table
        assert copied.child is table.child
