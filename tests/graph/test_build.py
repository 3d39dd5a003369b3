"""`build`: a constructor that refuses its arguments is the user's mistake, told with its place."""

from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, ConfigErrors, build

from .parts import Outer, Part, Square, Width, double, pair


class Refusal(Exception):
    """An error that cannot be made anew from its message."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def refuse(error: Any) -> None:
    """Raises what it is given."""
    raise error


def divide(number: int, by: int) -> int:
    """Divides."""
    return number // by


def test_each_node_is_built_once() -> None:
    shared = fdl.Config(Square)
    one, two = build(fdl.Config(pair, shared, [shared]))
    assert one is two[0]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("width=3 is odd."), "width=3 is odd."),
        (TypeError("no"), "no"),
        (RuntimeError("negative dimension -1"), "RuntimeError: negative dimension -1"),
        (KeyError("x"), "KeyError: 'x'"),
        (AssertionError(), "AssertionError"),
        (Refusal("one", "two"), "Refusal: one and two"),
    ],
)
def test_an_error_names_the_part_and_says_what_its_constructor_said(
    error: Exception, text: str
) -> None:
    cfg = fdl.Config(Outer, child=[fdl.Config(refuse, error)])
    with pytest.raises(ConfigError) as caught:
        build(cfg)
    assert str(caught.value).rstrip(": ") == f"child[0] (refuse): {text}"
    assert type(caught.value.__cause__) is type(error)


def test_at_the_root() -> None:
    with pytest.raises(ConfigError, match=r"^the root \(divide\): ZeroDivisionError: "):
        build(fdl.Config(divide, 1, by=0))


def test_a_message_is_short_however_much_was_built() -> None:
    cfg = fdl.Config(pair, list(range(100_000)), fdl.Config(refuse, ValueError("no")))
    with pytest.raises(ConfigError) as caught:
        build(cfg)
    assert len(str(caught.value)) < 100


def test_mistakes_are_found_before_anything_is_built() -> None:
    built = []
    cfg = fdl.Config(pair, fdl.Config(built.append, 1), fdl.Config(Part, width="x"))
    with pytest.raises(ConfigErrors, match="second.width is 'x'"):
        build(cfg)
    assert not built


def test_a_computed_value_of_the_wrong_type_is_found_where_it_is_heard() -> None:
    cfg = fdl.Config(
        Outer, width=Width.new(fdl.Config(double, 2)), child=fdl.Config(Square, Width.new())
    )
    assert build(cfg).child.width == 4
    cfg.width = fdl.Config(Square)
    with pytest.raises(ConfigErrors, match="width is the part Square, and Outer takes int"):
        build(cfg)
