"""`build`: errors of constructors have the path of their node."""

from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, ConfigErrors, build

from .edited import message_of
from .parts import Outer, Square, Width, double, pair


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
        (TypeError("no"), "no"),
        (RuntimeError("negative dimension -1"), "RuntimeError: negative dimension -1"),
        (KeyError("x"), "KeyError: 'x'"),
        (AssertionError(), "AssertionError"),
        (Refusal("one", "two"), "Refusal: one and two"),
    ],
)
def test_an_error_has_the_path_and_the_message_of_the_constructor(
    error: Exception, text: str
) -> None:
    cfg = fdl.Config(Outer, child=[fdl.Config(refuse, error)])
    with pytest.raises(ConfigError) as caught:
        build(cfg)
    assert str(caught.value).rstrip(": ") == f"child[0] (refuse): {text}"
    assert type(caught.value.mistakes[0].__cause__) is type(error)


@pytest.mark.slow
def test_a_message_is_short_however_much_was_built() -> None:
    cfg = fdl.Config(pair, list(range(100_000)), fdl.Config(refuse, ValueError("no")))
    assert len(message_of(lambda: build(cfg))) < 100


def test_a_computed_value_of_the_wrong_type_is_found_where_it_is_inherited() -> None:
    cfg = fdl.Config(
        Outer, width=Width.new(fdl.Config(double, 2)), child=fdl.Config(Square, Width.new())
    )
    assert build(cfg).child.width == 4
    cfg.width = fdl.Config(Square)
    with pytest.raises(ConfigErrors, match="width is the component Square, and Outer takes int"):
        build(cfg)


def test_what_draws_at_random_is_made_in_the_order_in_which_one_reads_it() -> None:
    made: list[str] = []

    def note(name: str, *held: Any, **more: Any) -> tuple[str, int, int]:
        made.append(name)
        return name, len(held), len(more)

    def one(name: str) -> fdl.Config:
        return fdl.Config(note, name)

    shared = one("shared")
    cfg = fdl.Config(note, "root", one("a"), [shared, one("b")], x={"z": one("c"), "y": shared})
    built = build(cfg)
    order, made[:] = list(made), []
    assert built == fdl.build(cfg)
    assert order == made == ["a", "shared", "b", "c", "root"]


def test_too_deep_a_graph_is_an_error_of_its_own() -> None:
    cfg: Any = fdl.Config(Outer)
    for _ in range(1500):
        cfg = fdl.Config(Outer, child=cfg)
    with pytest.raises(ConfigError, match="nested too deeply"):
        build(cfg)
