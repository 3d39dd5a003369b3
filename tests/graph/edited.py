"""A graph to be edited, parts that a text may name, and a check that an error changes nothing."""

import dataclasses
from collections.abc import Callable
from typing import Any

import fiddle as fdl
import pytest

from fidgpt.graph import ConfigError, fingerprint

from . import parts
from .parts import Outer, Part, Rate, Square, Width, double, keywords, pair, product, scaled


@dataclasses.dataclass
class Settings:
    """Has default factories."""

    depth: int = 2
    inner: Square = dataclasses.field(default_factory=Square)
    names: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Holder:
    """Holds settings by a default factory."""

    settings: Settings = dataclasses.field(default_factory=Settings)
    shape: parts.Shape | None = None


def takes_function(call: Callable[[int], int] = double) -> Callable[[int], int]:
    """Holds a function."""
    return call


PARTS = {
    function.__name__: function
    for function in (
        Part,
        parts.Wide,
        Outer,
        Square,
        double,
        scaled,
        keywords,
        pair,
        parts.annotated,
        product,
    )
}


def graph() -> fdl.Config[Outer]:
    shared = fdl.Config(Square, width=4)
    blocks = [
        fdl.Partial(Outer, rate=Rate.new(), width=Width.new(), child=shared, depth=i)
        for i in range(4)
    ]
    blocks[3].other = fdl.ArgFactory(Part, width=parts.InnerWidth.new(), child=shared)
    return fdl.Config(Outer, width=Width.new(8), rate=Rate.new(0.5), child=blocks)


def message_of(make: Callable[[], Any]) -> str:
    """Return the message of the error that a call raises."""
    with pytest.raises(ConfigError) as caught:
        make()
    return str(caught.value)


def refused(cfg: Any, edit: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """Return the message of a refused edit, having made sure that it changed nothing."""
    before = fingerprint(cfg), str(cfg)
    message = message_of(lambda: edit(cfg, *arguments, **named))
    assert (fingerprint(cfg), str(cfg)) == before
    return message
