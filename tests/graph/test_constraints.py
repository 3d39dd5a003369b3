"""Constraints between arguments are asked of a graph that is not built, all in one go."""

from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, ConfigErrors, build, checked
from fidgpt.tags import HiddenDim


def half(*, of: int) -> int:
    return of // 2


class Heads:
    built = 0

    def __init__(self, *, width: int, count: int = 4, inner: Any = None) -> None:
        Heads.built += 1
        self.check_arguments(width=width, count=count)

    @staticmethod
    def check_arguments(*, width: int, count: int) -> None:
        if width % count:
            raise ValueError(f"{width=} is not a multiple of {count=}.")


def messages_of(root: Any, **options: Any) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        checked(root, **options)
    return caught.value.messages


def test_every_broken_constraint_is_reported_and_nothing_is_built() -> None:
    root = fdl.Config(Heads, width=6, inner=fdl.Config(Heads, width=9, count=2))
    Heads.built = 0
    assert messages_of(root) == [
        "the root (Heads): width=6 is not a multiple of count=4.",
        "inner (Heads): width=9 is not a multiple of count=2.",
    ]
    assert Heads.built == 0


def test_the_constructor_refuses_the_same_without_a_graph() -> None:
    with pytest.raises(ValueError, match="width=6 is not a multiple of count=4"):
        Heads(width=6)


def test_a_heard_value_is_asked_once_it_is_known() -> None:
    root = fdl.Config(
        Heads, width=HiddenDim.new(8), inner=fdl.Config(Heads, width=HiddenDim.new(), count=3)
    )
    assert messages_of(root) == ["inner (Heads): width=8 is not a multiple of count=3."]


def test_a_computed_number_is_known_too() -> None:
    root = fdl.Config(Heads, width=fdl.Config(half, of=12))
    assert messages_of(root) == ["the root (Heads): width=6 is not a multiple of count=4."]


def test_parts_inside_a_factory_are_asked() -> None:
    root = fdl.Partial(Heads, width=8, inner=fdl.ArgFactory(Heads, width=7))
    assert messages_of(root) == ["inner (Heads): width=7 is not a multiple of count=4."]


def test_what_a_partial_leaves_open_is_not_asked() -> None:
    checked(fdl.Partial(Heads, count=3))


def test_a_constraint_of_the_whole_graph_is_reported_beside_the_others() -> None:
    def even(root: Any) -> None:
        if root.count % 2:
            raise ValueError(f"count={root.count} is odd.")

    root = fdl.Config(Heads, width=7, count=3)
    assert messages_of(root, constraints=[even])[-1] == "count=3 is odd."
    with pytest.raises(ConfigErrors, match="odd"):
        build(fdl.Config(Heads, width=6, count=3), constraints=[even])
    build(fdl.Config(Heads, width=6, count=2), constraints=[even])


class Fewer(Heads):
    """Chooses an argument that the check it inherits asks for."""

    def __init__(self, *, width: int) -> None:
        super().__init__(width=width, count=2)


def test_a_subclass_that_chooses_an_argument_itself_is_asked_when_it_is_built() -> None:
    assert build(fdl.Config(Fewer, width=6)).__class__ is Fewer
    with pytest.raises(ConfigError, match=r"the root \(Fewer\): width=7 is not a multiple"):
        build(fdl.Config(Fewer, width=7))


class Odd:
    """Has a check that fails in a way of its own."""

    def __init__(self, width: int = 0) -> None: ...

    @staticmethod
    def check_arguments(*, width: int) -> None:
        assert 6 // width > 1, "line\n" * 50


class Asks(Heads):
    """Has a check that cannot be called."""

    def check_arguments(self, width: int) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("root", "message"),
    [
        (fdl.Config(Odd), "the root (Odd): ZeroDivisionError: integer division or modulo by zero"),
        (fdl.Config(Odd, width=6), "the root (Odd): AssertionError: line"),
        (fdl.Config(Asks, width=8), "Asks.check_arguments asks for self, which Asks does not take"),
    ],
)
def test_a_check_that_is_wrong_is_a_mistake_too(root: fdl.Config, message: str) -> None:
    assert messages_of(root)[0].startswith(message)
    assert len(messages_of(root)[0].splitlines()) < 7


def test_a_constraint_that_breaks_is_named() -> None:
    def looks_far(root: Any) -> None:
        root.inner.inner.width  # noqa: B018

    assert messages_of(fdl.Config(Heads, width=8), constraints=[looks_far])[0].startswith(
        "the constraint looks_far failed: AttributeError"
    )
