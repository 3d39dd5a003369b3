"""Lists and dicts are values: a copy of a graph has one of its own for each place."""

from typing import Any

import fiddle as fdl

from fidgpt.graph import bind, clone, clone_part, diff, dump, equal, fingerprint, load
from fidgpt.graph.edits import set_text, set_value

from .parts import Outer, Part, Size, pair


def test_a_list_in_two_places_is_two_lists_in_a_copy() -> None:
    several = [1, 2]
    cfg = fdl.Config(Outer, child=several, other={"a": several, "b": (several,)})
    copied = clone(cfg)
    lists = [copied.child, copied.other["a"], copied.other["b"][0]]
    assert len({id(one) for one in [*lists, several]}) == 4
    set_text(copied, "child[0]", "5")
    assert (copied.other, several) == ({"a": [1, 2], "b": ([1, 2],)}, [1, 2])
    assert cfg.child is cfg.other["a"]


def test_what_lies_in_it_is_copied_as_often_and_parts_stay_one() -> None:
    part = fdl.Config(Part, width=1)
    inner = {"one": part, "many": [part]}
    outer = [inner, Size([], ())]  # type: ignore[arg-type]
    copied = clone(fdl.Config(pair, [outer, inner], outer))
    (first, third), second = copied.first, copied.second
    dicts = [first[0], second[0], third]
    assert len({id(one) for one in dicts}) == len({id(one["many"]) for one in dicts}) == 3
    assert first[1].width is not second[1].width
    assert type(first[1]) is Size
    assert len({id(one["one"]) for one in dicts} | {id(one["many"][0]) for one in dicts}) == 1
    assert dicts[0]["one"] is not part


def test_a_file_says_the_same_graph_before_and_after() -> None:
    part = fdl.Config(Part, width=1)
    several = [part, [2, 3]]
    cfg = fdl.Config(pair, several, fdl.Config(pair, several, {"a": several}))
    again = load(dump(cfg), allowed=(__package__ or "",))
    for one in (clone(cfg), again):
        assert fingerprint(one) == fingerprint(cfg)
        assert dump(one) == dump(cfg)
        assert equal(one, cfg)
        assert diff(one, cfg) == []
    for one in (clone(cfg), again):
        one.first[1][0] = 9
        assert one.second.first[1] == one.second.second["a"][1] == [2, 3]


def test_a_part_that_is_copied_or_bound_has_lists_of_its_own_too() -> None:
    several: list[Any] = [1]
    part = fdl.Config(pair, several, several)
    for copied in (clone_part(part), bind(part)):
        assert len({id(copied.first), id(copied.second), id(several)}) == 3


def test_lists_of_one_list_twice_of_one_list_twice_stay_few() -> None:
    value: Any = [1]
    for _ in range(100):
        value = [value, value]
    assert len(clone(fdl.Config(pair, value)).first) == 2


def test_a_deep_list_in_two_places() -> None:
    value: Any = []
    for _ in range(3000):
        value = [value]
    copied = clone(fdl.Config(pair, value, value))
    first, second = copied.first, copied.second
    while first:
        assert first is not second
        first, second = first[0], second[0]


def test_a_value_that_is_set_in_many_places_is_many() -> None:
    part = fdl.Config(Part, width=1)
    cfg = fdl.Config(Outer, child=[fdl.Config(Outer), fdl.Config(Outer)])
    value = [part, {"a": 1}]
    set_value(cfg, "child[*].child", value)
    set_value(cfg, "other", value)
    lists = [cfg.child[0].child, cfg.child[1].child, cfg.other, value]
    assert len({id(one) for one in lists}) == len({id(one[1]) for one in lists}) == 4
    assert {id(one[0]) for one in lists} == {id(part)}
