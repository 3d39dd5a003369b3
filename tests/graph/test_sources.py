"""An error has its place and the paths of the values that cause it, apart from its text."""

from collections import OrderedDict
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, ConfigErrors, build
from fidgpt.graph.errors import at, raise_all
from fidgpt.graph.formulas import make_formula
from fidgpt.graph.permissions import allowed_changes

from .parts import Outer, Part, Width, pair

Places = tuple[str, list[str]]  # the place, and the sources


def places(root: Any, **options: Any) -> list[Places]:
    with pytest.raises(ConfigError) as caught:
        build(root, **options)
    return [(one.place, list(one.sources)) for one in caught.value.mistakes]


class Even:
    """Rejects odd and large numbers."""

    def __init__(self, *, width: int, depth: int = 2, rate: float = 0.0) -> None:
        if width > 100:
            raise ValueError(f"{width=} is more than {depth=} bears, and other.rate=3 is not its.")
        if width % 2 or depth % 2:
            raise ValueError(f"{width=} or {depth=} is odd; sub_rate=3 is not its, try rate=0.5.")
        if rate:
            raise ValueError("it is too fast.")


class TestOfOnePlace:
    """What is wrong in one place comes from there."""

    @pytest.mark.parametrize(
        ("root", "place"),
        [
            (fdl.Config(Outer, child=[fdl.Config(Part)]), "child[0].width"),
            (fdl.Config(Outer, child=fdl.Config(Part, width="x")), "child.width"),
            (fdl.Config(Outer, child=[fdl.ArgFactory(Outer)]), "child[0]"),
            (fdl.Config(Outer, child=OrderedDict(a=fdl.Config(Outer))), "child"),
            (fdl.Config(Outer, width="x"), "width"),
        ],
    )
    def test_it_is_named(self, root: Any, place: str) -> None:
        assert places(root) == [(place, [place])]

    def test_all_that_inherit_what_no_node_sets(self) -> None:
        root = fdl.Config(Outer, child=[fdl.Config(Part, width=Width.new()) for _ in range(3)])
        assert places(root) == [("child[0].width", [f"child[{i}].width" for i in range(3)])]


class TestOfSeveral:
    """What does not go together comes from all of it."""

    def test_both_that_say_a_quantity_and_the_way_to_it(self) -> None:
        part = fdl.Config(Part, width=Width.new())
        sides = [fdl.Config(Outer, width=Width.new(i), child=part) for i in (3, 5)]
        assert places(fdl.Config(pair, *sides)) == [
            (
                "first.child.width",
                ["first.child.width", "first.child", "first.width", "second.child", "second.width"],
            )
        ]

    def test_the_arguments_that_a_constructor_shows(self) -> None:
        odd, large, fast = (
            fdl.Config(Even, **arguments)
            for arguments in ({"width": 3}, {"width": 102}, {"width": 2, "rate": 1.0})
        )
        assert places(odd) == [("", ["width", "depth"])]
        assert places(fdl.Config(Outer, child=odd)) == [("child", ["child.width", "child.depth"])]
        assert places(fdl.Config(Outer, child=large)) == [("child", ["child.width", "child.depth"])]
        assert places(fdl.Config(Outer, child=fast)) == [("child", ["child"])]

    def test_those_that_a_constraint_of_the_whole_names_or_shows(self) -> None:
        def names(root: Any) -> None:
            raise ConfigError("they differ.", place="child.width", sources=["child.width", "rate"])

        def shows(root: Any) -> None:
            raise ValueError(f"width={root.width} is odd in world=2.")

        root = fdl.Config(Outer, width=3, child=fdl.Config(Part, width=2))
        assert places(root, constraints=[names, shows]) == [
            ("child.width", ["child.width", "rate"]),
            ("", ["width"]),
        ]

    def test_what_a_formula_is_computed_from(self) -> None:
        root = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, width=2))
        root.child.width = make_formula(root, "{@Width} / {depth} / 0")
        tag = "child.width.values['@Width']"
        assert places(root) == [("child.width", ["child.width", tag, "depth"])]
        root.child.width = make_formula(root, "{depth} + {nothing}")
        assert places(root) == [("child.width", ["child.width", "nothing"])]
        root.child.width, root.depth = (make_formula(root, name) for name in ("{depth}", "{width}"))
        root.width = make_formula(root, "{child.width}")
        assert {source for _, all_of in places(root) for source in all_of} == {
            "width", "depth", "child.width",
        }  # fmt: skip

    def test_a_loop_begins_and_ends(self) -> None:
        root = fdl.Config(Outer, child=fdl.Config(Outer))
        root.child.other = [root.child]
        assert places(root) == [("child", ["child", "child.other[0]"])]

    def test_a_change_that_a_run_may_not_make_comes_from_what_is_new(self) -> None:
        old = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, width=Width.new()))
        new = fdl.Config(Outer, width=Width.new(3), child=fdl.Config(Part, width=4))
        with pytest.raises(ConfigErrors) as caught:
            allowed_changes(old, new)
        assert caught.value.mistakes[0].sources == ("child.width",)
        with pytest.raises(ConfigErrors) as caught:
            allowed_changes(new, old)
        assert caught.value.mistakes[0].sources == ("child.width", "width")


class TestErrors:
    """Whatever is put around a mistake keeps what it knows."""

    def test_a_name_before_it(self) -> None:
        with pytest.raises(ConfigError) as caught, at("the file"), at("a.b", place="a.b"):
            raise ConfigError("it is odd.")
        assert str(caught.value) == "the file: a.b: it is odd."
        assert (caught.value.place, caught.value.sources) == ("a.b", ("a.b",))
        with pytest.raises(ConfigError) as caught, at("a", place="a"):
            raise ConfigError("it is odd.", place="a.b", sources=["c"])
        assert (caught.value.place, caught.value.sources) == ("a.b", ("c",))

    def test_several_in_one_go(self) -> None:
        with pytest.raises(ConfigErrors) as caught:
            raise_all([ConfigError("one", place="a"), "two"])
        assert caught.value.messages == ["one", "two"]
        assert [one.place for one in caught.value.mistakes] == ["a", ""]
        assert caught.value.sources == ("a",)
