"""Selectors: what each kind matches, each once, and the messages when it matches nothing."""

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, build, set_tag, swapped
from fidgpt.graph.selectors import find_parameters

from . import elsewhere, namesakes, parts
from .parts import Depth, Outer, Part, Rate, Square, Wide, Width, keywords


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
        (":Part.width", [*[f"child[{i}].child.width" for i in range(2)], "child[0].other.width"]),
        (":Wide", ["child[0].other", "child[2].child"]),
        ("child[1:]:Wide.child", ["child[1].other.child", "child[2].child.child"]),
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
        ("other[*]:elsewhere.Part.width", ["other[0].width"]),
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


def test_a_tag_may_be_named_with_its_module() -> None:
    cfg = graph()
    for name in ("parts.Width", f"{Width.__module__}.Width"):
        paths = [ref.path for ref in find_parameters(cfg, f"@{name}")]
        assert paths == [ref.path for ref in find_parameters(cfg, "@Width")]
    fdl.add_tag(cfg, "other", namesakes.Width)
    assert [place.path for place in find_parameters(cfg, "@namesakes.Width")] == ["other"]
    with pytest.raises(ConfigError, match=r"Width is the name of .*: write @.*\.Width or @"):
        find_parameters(cfg, "@Width")


NONE = ["", "**", "a.**", "a**", "a[**]", "[*", "a[:]b", "a[1:2:0]", ":", "a:", "@", "a.:", "a[:x]"]


@pytest.mark.parametrize("selector", NONE)
def test_what_is_no_selector(selector: str) -> None:
    with pytest.raises(ConfigError, match="is not a path|the path is empty"):
        find_parameters(graph(), selector)


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
        f"change. There is {known}."
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
