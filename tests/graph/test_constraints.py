"""What constructors and constraints reject is collected, all in one go."""

from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, ConfigErrors, build, check_and_bind
from fidgpt.tags import HiddenDim


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


def test_an_incomplete_factory_is_not_called() -> None:
    check_and_bind(fdl.Partial(Heads, count=3))


def test_a_function_inside_a_partial_is_not_called() -> None:
    called: list[int] = []
    check_and_bind(fdl.Partial(called.append, 1))
    assert not called


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
