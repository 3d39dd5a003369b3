"""The walk over a graph, and that its size, depth and sharing cost no more than they must."""

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, bind, build, nodes

from .edited import message_of
from .parts import Outer, Part, Width, pair


def diamonds(levels: int) -> fdl.Config:
    """A graph of `levels` parts with 2 ** levels paths through it."""
    inner = fdl.Config(Part, width=Width.new())
    for _ in range(levels):
        inner = fdl.Config(pair, inner, inner)
    return fdl.Config(Outer, width=Width.new(3), child=inner)


def chain(depth: int) -> fdl.Config:
    """A graph in which each part holds the next."""
    cfg = fdl.Config(Part, width=Width.new())
    for _ in range(depth):
        cfg = fdl.Config(Part, width=Width.new(), child=cfg)
    cfg.width = 3
    return cfg


def test_every_node_once_and_parents_first() -> None:
    shared = fdl.Config(Part, width=1)
    cfg = fdl.Config(pair, [shared, {"a": (shared,)}], fdl.Config(Part, 1, child=shared))
    found = nodes(cfg)
    position = {id(node.value): i for i, node in enumerate(found)}
    assert len(position) == len(found) == 6
    for node in found:
        assert all(position[id(p.value)] < position[id(node.value)] for p, _ in node.parents)


def test_a_path_is_the_one_that_a_reader_meets_first() -> None:
    deep = fdl.Config(Part, width=1)
    middle = fdl.Config(Part, 1, child=deep)
    cfg = fdl.Config(pair, fdl.Config(Part, 1, child=middle, other=deep), middle)
    node = next(node for node in nodes(cfg) if node.value is deep)
    assert node.path == "first.child.child"
    assert node.paths == ["first.child.child", "first.other"]
    assert node.is_shared


def test_a_part_that_contains_itself_is_refused_with_its_place() -> None:
    cfg = fdl.Config(Outer, child=[fdl.Config(Part, 1)])
    cfg.child[0].other = {"again": cfg.child}
    assert message_of(lambda: nodes(cfg)).startswith(
        "child (list) contains itself, at child[0].other['again']:"
    )
    cfg.child = cfg
    with pytest.raises(ConfigError, match=r"^the root \(Outer\) contains itself, at child:"):
        nodes(cfg)


def test_a_deep_chain_inherits_to_its_end() -> None:
    part = bind(chain(1000))
    while part.child is not None:
        part = part.child
    assert part.width == 3


def test_a_graph_with_a_billion_paths_is_built() -> None:
    build(diamonds(30))
