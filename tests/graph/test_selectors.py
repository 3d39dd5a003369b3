"""Selectors: what each kind matches, each once, and the messages when it matches nothing."""

from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, build, find, set_tag, swapped
from fidgpt.graph.selectors import find_parameters

from . import elsewhere, namesakes, parts
from .edited import message_of
from .parts import Depth, Outer, Part, Rate, Square, Wide, Width, keywords, pair, product


def graph() -> fdl.Config[Outer]:
    shared = fdl.Config(Wide, width=Width.new())
    blocks = [
        fdl.Partial(Outer, rate=Rate.new(), child=fdl.ArgFactory(Part, width=i), other=shared)
        for i in range(4)
    ]
    blocks[2].child = fdl.ArgFactory(Wide, width=parts.InnerWidth.new(7))
    last = fdl.Config(keywords, a=Width.new(), b=1)
    return fdl.Config(Outer, width=Width.new(3), child=blocks, other={"a b": shared, "last": last})


@pytest.mark.parametrize(
    ("selector", "paths"),
    [
        ("child[*].rate", [f"child[{i}].rate" for i in range(4)]),
        ("child[1:3].depth", ["child[1].depth", "child[2].depth"]),
        ("child[*].other.width", ["child[0].other.width"]),
        ("**.rate", ["rate", *[f"child[{i}].rate" for i in range(4)]]),
        ("**['a b'].width", ["other['a b'].width"]),
        (":Part.width", [*[f"child[{i}].child.width" for i in range(2)], "child[0].other.width"]),
        (":Wide", ["child[0].other", "child[2].child"]),
        ("child[1:]:Wide.child", ["child[1].other.child", "child[2].child.child"]),
        ("child.**:Wide.width", ["child[0].other.width", "child[2].child.width"]),
        ("@Rate", [f"child[{i}].rate" for i in range(4)]),
        ("@Width", ["width", "child[2].child.width"]),
        ("other[*]@Width", ["other['a b'].width", "other['last'].a"]),
    ],
)
def test_what_a_selector_names(selector: str, paths: list[str]) -> None:
    found = [place.path for place in find_parameters(graph(), selector)]
    if selector == ":Part.width":
        assert sorted(found) == sorted([*paths, "child[2].child.width", "child[3].child.width"])
    else:
        assert found == paths


def two_of_one_name() -> fdl.Config[Outer]:
    here = fdl.Config(Part, width=1)
    return fdl.Config(Outer, child=here, other=[fdl.Config(elsewhere.Part, width=2)])


@pytest.mark.parametrize(
    ("selector", "paths"),
    [
        (f":{Part.__module__}.Part.width", ["child.width"]),
        (f":{elsewhere.Part.__module__}.Part.width", ["other[0].width"]),
        (":elsewhere.Part.width", ["other[0].width"]),
        ("other[*]:elsewhere.Part.width", ["other[0].width"]),
        ("other:Part.width", ["other[0].width"]),
    ],
)
def test_a_class_by_its_dotted_name(selector: str, paths: list[str]) -> None:
    assert [place.path for place in find_parameters(two_of_one_name(), selector)] == paths


def test_a_name_of_two_unrelated_classes_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        find_parameters(two_of_one_name(), ":Part.width")
    here, there = f"{Part.__module__}.Part", f"{elsewhere.Part.__module__}.Part"
    assert str(caught.value) == (
        f"Part is the name of {here} and of {there}: write :{here} or :{there}."
    )
    cfg = fdl.Config(Outer, child=fdl.Config(Part), other=fdl.Config(elsewhere.Heir, width=1))
    assert len(find_parameters(cfg, ":Part.width")) == 2


def test_a_dotted_name_of_no_class_is_shown_whole() -> None:
    module = Part.__module__
    assert f"no component there is a {module}.Prt. Did you mean Part?" in message_of(
        lambda: find_parameters(two_of_one_name(), f":{module}.Prt.width")
    )


def test_a_quantity_in_a_list_is_a_place_with_its_tag() -> None:
    cfg = fdl.Config(pair, [Width.new(), 5, fdl.Config(product, Width.new(), Depth.new(2))])
    for selector, count in (("@Width", 2), ("first[*]", 3), ("first[0:1]", 1)):
        found = find_parameters(cfg, selector)
        assert len(found) == count
        assert found[0].path == "first[0]"
        found[0].set(9)
        assert fdl.get_tags(cfg.first[0], "value") == {Width}
    assert [place.path for place in find_parameters(cfg, "@Depth")] == ["first[2][1]"]
    assert [place.path for place in find_parameters(cfg, ":product[*]")] == ["first[2][1]"]


def test_a_tag_may_be_named_with_its_module() -> None:
    cfg = graph()
    for name in ("parts.Width", f"{Width.__module__}.Width"):
        paths = [ref.path for ref in find_parameters(cfg, f"@{name}")]
        assert paths == [ref.path for ref in find_parameters(cfg, "@Width")]
    fdl.add_tag(cfg, "other", namesakes.Width)
    assert [place.path for place in find_parameters(cfg, "@namesakes.Width")] == ["other"]
    with pytest.raises(ConfigError, match=r"Width is the name of .*: write @.*\.Width or @"):
        find_parameters(cfg, "@Width")


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("width[*]", "width[*] selects nothing: width is 3 (int), and has no entries."),
        ("depth[*]", "depth[*] selects nothing: depth is not set, and has no entries."),
        ("child[0][*]", "child[0][*] selects nothing: child[0] is the component Outer, and has no "
         "entries."),
        ("child:keywords", "child:keywords selects nothing: no component there is a keywords. "
         "There are Outer, Part, Wide."),
        ("@Depth", "@Depth selects nothing: no parameter there carries the tag Depth. "
         "There are InnerWidth, Rate, Width."),
    ],
)  # fmt: skip
def test_nothing_is_a_mistake(selector: str, message: str) -> None:
    assert message_of(lambda: find_parameters(graph(), selector)) == message


NONE = ["", "**", "a.**", "a**", "a[**]", "[*", "a[:]b", "a[1:2:0]", ":", "a:", "@", "a.:", "a[:x]"]


@pytest.mark.parametrize("selector", NONE)
def test_what_is_no_selector(selector: str) -> None:
    with pytest.raises(ConfigError, match="is not a path|the path is empty"):
        find_parameters(graph(), selector)


def test_the_whole_graph_has_no_place() -> None:
    with pytest.raises(ConfigError, match="^:pair is the whole graph: name a parameter in it.$"):
        find_parameters(fdl.Config(pair), ":pair")


def test_depth_is_no_limit_and_diamonds_are_walked_once() -> None:
    deep: Any = fdl.Config(Part, width=1)
    for _ in range(1000):
        deep = fdl.Config(Part, child=deep, other=deep)
    assert len(find_parameters(deep, "**.width")) == 1001
    nested: Any = 1
    for _ in range(1000):
        nested = [nested]
    assert find_parameters(fdl.Config(pair, nested), "first.**[0]")[-1].value == 1


def test_find_gives_each_part_once_and_its_subclasses() -> None:
    shared = fdl.Config(Part, width=1)
    wide = fdl.ArgFactory(Wide, width=1)
    cfg = fdl.Config(pair, [shared, shared, fdl.Partial(Outer, child=wide)])
    assert find(cfg, Part) == [shared, wide]
    assert find(cfg, Wide) == [wide]
    assert len(find(cfg, Wide, Outer)) == 2
    assert find(cfg, pair) == [cfg]


def test_a_tag_is_set_where_it_is_set() -> None:
    heir = fdl.Config(Part, width=Width.new())
    local = fdl.Config(Part, width=Width.new(7))
    cfg = fdl.Config(Outer, width=Width.new(3), child=[heir, local])
    assert set_tag(cfg, Width, 5) == 2
    assert "width" not in fdl.ordered_arguments(heir), "it still inherits"
    assert [one.width for one in build(cfg).child] == [5, 5]


def test_a_tag_that_nothing_carries_is_a_mistake() -> None:
    with pytest.raises(ConfigError) as caught:
        set_tag(fdl.Config(Outer, width=Width.new(3)), namesakes.Width, 0.1)
    known = f"{Width.__module__}.Width"
    assert str(caught.value) == (
        f"no parameter of Outer carries the tag {namesakes.__name__}.Width, so nothing would "
        f"change. Another has that name, {known}: write tag:{known}=..., or give a "
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
