"""A factory is refused where it is sure that the call its place makes cannot be made."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigErrors, build, check

from .parts import Outer, Part, Width


def holding(
    none: Callable[[], Part] | None = None,
    one: Callable[[int], Part] | None = None,
    any_of: Callable[..., Part] | None = None,
    either: Callable[[], Part] | Callable[[int], Part] | None = None,
    many: Sequence[Callable[[], Part]] = (),
    named: Mapping[str, Sequence[Callable[[], Part]]] | None = None,
    loose: Any = None,
) -> list[Any]:
    """Holds factories, and calls none."""
    return [none, one, any_of, either, many, named, loose]


def takes(*widths: int, depth: int) -> Part:
    """Makes a part of any number of widths."""
    return Part(sum(widths) + depth)


def named(*, width: int) -> Part:
    """May be called by name, which no Callable tells."""
    return Part(width)


def product(width: int, depth: int) -> Part:
    """Takes two numbers."""
    return Part(width * depth)


BARE = fdl.Partial(Part)


@pytest.mark.parametrize(
    "arguments",
    [
        {"none": fdl.Partial(Part, width=1)},
        {"none": fdl.Partial(Part, width=Width.new())},
        {"none": fdl.Partial(takes, 1, 2, depth=1)},
        {"one": BARE},
        {"one": fdl.Partial(takes, 1, depth=1)},
        {"one": fdl.Partial(named)},
        {"any_of": BARE},
        {"either": BARE},
        {"loose": BARE},
        {"loose": [BARE]},
        {"many": [fdl.Partial(Part, width=1)]},
    ],
)
def test_what_can_be_called(arguments: dict[str, Any]) -> None:
    cfg = fdl.Config(Outer, width=Width.new(1), child=fdl.Config(holding, **arguments))
    check(cfg)
    build(cfg)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"none": BARE}, "none is called without arguments, and Part requires width, which is"),
        ({"none": fdl.Partial(takes)}, "none is called without arguments, and takes requires "),
        ({"many": [BARE]}, "many[0] is called without arguments, and Part requires width, which"),
        ({"named": {"a": (BARE,)}}, "named['a'][0] is called without arguments, and Part requires"),
        ({"one": fdl.Partial(product)}, "one is called with 1 argument, and product requires "),
        ({"none": BARE, "one": BARE}, "none is called without arguments"),
    ],
)  # fmt: skip
def test_what_cannot(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        check(fdl.Config(holding, **arguments))
    assert len(caught.value.messages) == 1
    assert caught.value.messages[0].startswith(message)
