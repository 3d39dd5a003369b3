"""Copies: what was one node stays one node, and nothing else is shared with the original."""

import collections
from typing import Any

import fiddle as fdl

from fidgpt import graph

from .parts import Outer, Part, Size, Width, double, pair


def test_a_copy_shares_within_itself_and_not_with_the_original() -> None:
    shared = fdl.Config(Part, width=Width.new())
    cfg = fdl.Config(Outer, width=Width.new(3), child=[shared, (shared,)], other={"a": shared})
    copied = graph.clone(cfg)
    assert copied.child[0] is copied.child[1][0] is copied.other["a"]
    assert copied.child[0] is not shared
    copied.child[0].width = 7
    copied.child.append(1)
    copied.other["b"] = 2
    fdl.add_tag(copied, "depth", Width)
    assert "width: 3  <- width" in graph.outline(cfg)
    assert len(cfg.child) == 2
    assert set(cfg.other) == {"a"}
    assert fdl.get_tags(cfg, "depth") == frozenset()


def test_containers_keep_their_type() -> None:
    part = fdl.Config(Part, width=1)
    for value in (
        Size(part, part),  # type: ignore[arg-type]
        collections.OrderedDict(a=part),
        collections.defaultdict(list, a=part),
        (part,),
    ):
        copied: Any = graph.clone(fdl.Config(pair, value)).first
        assert type(copied) is type(value)
        assert len(copied) == len(value)


class TestPart:
    """`clone_part` keeps what is built once, and copies what a factory creates."""

    def block(self) -> fdl.Partial:
        shared = fdl.Config(Part, width=Width.new())
        fresh = fdl.ArgFactory(Part, width=fdl.Config(double, Width.new()), child=shared)
        return fdl.Partial(Part, width=Width.new(), child=fresh, other=[shared])

    def test_what_is_built_once_is_held_by_both(self) -> None:
        block = self.block()
        copied = graph.clone_part(block)
        assert copied.child.child is block.child.child is copied.other[0]
        assert copied.child is not block.child
        assert copied.other is not block.other
        one, two = graph.build(fdl.Config(Outer, width=Width.new(3), child=[block, copied])).child
        assert one().child.child is two().child.child


def test_a_file_holds_an_equal_graph() -> None:
    part = fdl.Config(Part, width=1)
    several = [part, [2, 3]]
    cfg = fdl.Config(pair, several, fdl.Config(pair, several, {"a": several}))
    again = graph.load(graph.dump(cfg), allowed=(__package__ or "",))
    for one in (graph.clone(cfg), again):
        assert graph.fingerprint(one) == graph.fingerprint(cfg)
        assert graph.dump(one) == graph.dump(cfg)
        assert graph.equal(one, cfg)
        assert graph.diff(one, cfg) == []
    for one in (graph.clone(cfg), again):
        one.first[1][0] = 9
        assert one.second.first[1] == one.second.second["a"][1] == [2, 3]


def test_a_part_that_is_copied_or_bound_has_lists_of_its_own_too() -> None:
    several: list[Any] = [1]
    part = fdl.Config(pair, several, several)
    for copied in (graph.clone_part(part), graph.bind(part)):
        assert len({id(copied.first), id(copied.second), id(several)}) == 3
