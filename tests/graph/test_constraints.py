"""What constructors and constraints reject: when a graph is checked, and when it is built."""

from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, ConfigErrors, build, check_and_bind
from fidgpt.graph.formulas import make_formula
from fidgpt.tags import HiddenDim

from .parts import Outer, Part, Square, Width, double, pair


def half(*, of: int) -> int:
    return of // 2


class Heads:
    def __init__(self, *, width: int, count: int = 4, inner: Any = None) -> None:
        if width % count:
            raise ValueError(f"{width=} is not a multiple of {count=}.")


def messages_of(root: Any, **options: Any) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        check_and_bind(root, **options)
    return caught.value.messages


def test_every_rejection_is_reported_and_parents_of_rejected_nodes_are_skipped() -> None:
    odd = [fdl.Config(Heads, width=7), fdl.Config(Heads, width=9), fdl.Config(Heads, width=8)]
    assert messages_of(fdl.Config(Heads, width=1, inner=odd)) == [
        "inner[0] (Heads): width=7 is not a multiple of count=4.",
        "inner[1] (Heads): width=9 is not a multiple of count=4.",
    ]


def test_inherited_and_computed_values_are_checked() -> None:
    inner = fdl.Config(Heads, width=HiddenDim.new(), count=3)
    root = fdl.Config(Heads, width=HiddenDim.new(8), inner=inner)
    assert messages_of(root) == ["inner (Heads): width=8 is not a multiple of count=3."]
    root = fdl.Config(Heads, width=fdl.Config(half, of=12))
    assert messages_of(root) == ["the root (Heads): width=6 is not a multiple of count=4."]


def test_nodes_inside_a_factory_are_constructed() -> None:
    root = fdl.Partial(Heads, width=8, inner=fdl.ArgFactory(Heads, width=7))
    assert messages_of(root) == ["inner (Heads): width=7 is not a multiple of count=4."]
    held = fdl.Partial(Heads, width=8, inner=[fdl.ArgFactory(Heads, width=8)], count=3)
    assert messages_of(held) == ["the root (Heads): width=8 is not a multiple of count=3."]


def test_a_constraint_of_the_whole_graph_is_reported_beside_the_others() -> None:
    def even(root: Any) -> None:
        if root.count % 2:
            raise ValueError(f"count={root.count} is odd.")

    root = fdl.Config(Heads, width=7, count=3)
    assert messages_of(root, constraints=[even])[-1] == "count=3 is odd."
    with pytest.raises(ConfigErrors, match="odd"):
        build(fdl.Config(Heads, width=6, count=3), constraints=[even])
    build(fdl.Config(Heads, width=6, count=2), constraints=[even])


class Breaks:
    """Fails in a way that is not a rejection of its arguments."""

    def __init__(self) -> None:
        raise OSError("a file is missing")


def test_other_exceptions_wait_until_the_graph_is_built() -> None:
    check_and_bind(fdl.Config(Heads, width=8, inner=fdl.Config(Breaks)))
    with pytest.raises(ConfigError, match=r"inner \(Breaks\): OSError: a file is missing"):
        build(fdl.Config(Heads, width=8, inner=fdl.Config(Breaks)))


def test_a_constraint_that_breaks_is_named() -> None:
    def looks_far(root: Any) -> None:
        root.inner.inner.width  # noqa: B018

    assert messages_of(fdl.Config(Heads, width=8), constraints=[looks_far])[0].startswith(
        "the constraint looks_far failed: AttributeError"
    )


def places(root: Any, **options: Any) -> list[tuple[str, list[str]]]:
    """Return the place of each mistake, and the paths of the values that cause it."""
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


@pytest.mark.parametrize(
    ("root", "place"),
    [
        (fdl.Config(Outer, child=[fdl.Config(Part)]), "child[0].width"),
        (fdl.Config(Outer, child=fdl.Config(Part, width="x")), "child.width"),
        (fdl.Config(Outer, width="x"), "width"),
    ],
)
def test_what_is_wrong_in_one_place_comes_from_there(root: Any, place: str) -> None:
    assert places(root) == [(place, [place])]


def test_what_no_node_sets_comes_from_all_that_inherit_it() -> None:
    root = fdl.Config(Outer, child=[fdl.Config(Part, width=Width.new()) for _ in range(3)])
    assert places(root) == [("child[0].width", [f"child[{i}].width" for i in range(3)])]


def test_two_values_come_from_both_and_the_way_to_them() -> None:
    part = fdl.Config(Part, width=Width.new())
    sides = [fdl.Config(Outer, width=Width.new(i), child=part) for i in (3, 5)]
    assert places(fdl.Config(pair, *sides)) == [
        (
            "first.child.width",
            ["first.child.width", "first.child", "first.width", "second.child", "second.width"],
        )
    ]


def test_a_rejection_comes_from_the_arguments_in_its_text() -> None:
    odd, large, fast = (
        fdl.Config(Even, **arguments)
        for arguments in ({"width": 3}, {"width": 102}, {"width": 2, "rate": 1.0})
    )
    assert places(odd) == [("", ["width", "depth"])]
    assert places(fdl.Config(Outer, child=odd)) == [("child", ["child.width", "child.depth"])]
    assert places(fdl.Config(Outer, child=large)) == [("child", ["child.width", "child.depth"])]
    assert places(fdl.Config(Outer, child=fast)) == [("child", ["child"])]


class Caller:
    def __init__(self, *, make: Any) -> None:
        self.made = make()


def test_a_call_that_python_refuses_is_an_error_of_what_is_called() -> None:
    with pytest.raises(
        ConfigError, match=r"^make \(Heads\): Heads.__init__\(\) missing .* 'width'"
    ):
        build(fdl.Config(Caller, make=fdl.Partial(Heads)))


def test_a_constraint_of_the_whole_names_its_sources() -> None:
    def names(root: Any) -> None:
        raise ConfigError("they differ.", place="child.width", sources=["child.width", "rate"])

    def shows(root: Any) -> None:
        raise ValueError(f"width={root.width} is odd in world=2.")

    root = fdl.Config(Outer, width=3, child=fdl.Config(Part, width=2))
    assert places(root, constraints=[names, shows]) == [
        ("child.width", ["child.width", "rate"]),
        ("", ["width"]),
    ]


def test_a_formula_fails_by_what_it_is_computed_from() -> None:
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


def test_a_loop_comes_from_both_ends() -> None:
    root = fdl.Config(Outer, child=fdl.Config(Outer))
    root.child.other = [root.child]
    assert places(root) == [("child", ["child", "child.other[0]"])]


class Refusal(Exception):
    """An error that cannot be created from its message."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def refuse(error: Any) -> None:
    """Raises what it is given."""
    raise error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("width=3 is odd."), "width=3 is odd."),
        (RuntimeError("negative dimension -1"), "RuntimeError: negative dimension -1"),
        (Refusal("one", "two"), "Refusal: one and two"),
    ],
)
def test_an_error_has_the_path_and_message_of_the_constructor(error: Exception, text: str) -> None:
    cfg = fdl.Config(Outer, child=[fdl.Config(refuse, error)])
    with pytest.raises(ConfigError) as caught:
        build(cfg)
    assert str(caught.value).rstrip(": ") == f"child[0] (refuse): {text}"
    assert type(caught.value.mistakes[0].__cause__) is type(error)


def test_a_computed_value_of_the_wrong_type_is_found_where_it_is_inherited() -> None:
    cfg = fdl.Config(
        Outer, width=Width.new(fdl.Config(double, 2)), child=fdl.Config(Square, Width.new())
    )
    assert build(cfg).child.width == 4
    cfg.width = fdl.Config(Square)
    with pytest.raises(ConfigErrors, match="width is the component Square, and Outer takes int"):
        build(cfg)
