"""Toy constructors and quantities from which the tests of the graph make their graphs."""

import dataclasses
import enum
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Optional, Protocol, TypeVar, Union

import fiddle as fdl

T = TypeVar("T")


class Width(fdl.Tag):
    """Elements across."""


class InnerWidth(Width):
    """Elements across, inside of something; the inherited width by default."""


class Depth(fdl.Tag):
    """Elements down."""


class Rate(fdl.Tag):
    """A share, from 0 to 1."""


class Extra(fdl.Tag):
    """A tag that nothing else carries."""


class Color(enum.Enum):
    """Something to choose from."""

    RED = 1
    BLUE = 2


class Size(NamedTuple):
    """Two numbers with names."""

    width: int
    depth: int


@dataclasses.dataclass
class Options:
    """A dataclass with a default factory."""

    width: int = 1
    names: list[str] = dataclasses.field(default_factory=list)


class Part:
    """A part that has a width and may hold another."""

    def __init__(self, width: int, child: Any = None, other: Any = None) -> None:
        self.width = width
        self.child = child
        self.other = other


class Wide(Part):
    """A part of the same shape and another kind."""


class Outer:
    """A part that sets values and holds parts, and has no annotation that refuses any."""

    def __init__(
        self,
        width: int = 0,
        depth: int = 0,
        rate: float = 0.0,
        child: Any = None,
        other: Any = None,
    ) -> None:
        self.width = width
        self.depth = depth
        self.rate = rate
        self.child = child
        self.other = other


class Shape(Protocol):
    """What has an area."""

    def area(self) -> float: ...


class Square:
    """A shape."""

    def __init__(self, width: int = 1) -> None:
        self.width = width

    def area(self) -> float:
        return float(self.width**2)

    @classmethod
    def unit(cls) -> "Square":
        return cls(1)


def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


def scaled(number: int, ratio: float = 0.5) -> int:
    """A share of a number."""
    return int(number * ratio)


def product(*factors: int) -> int:
    """All factors multiplied."""
    return math.prod(factors)


def positional(width: int, /, depth: int = 2) -> tuple[int, int]:
    """Takes a width that has no name."""
    return width, depth


def keywords(**settings: int) -> dict[str, int]:
    """Takes any name."""
    return settings


def pair(first: Any, second: Any = None) -> tuple[Any, Any]:
    """Holds two things."""
    return first, second


def holding(items: Sequence[Any]) -> list[Any]:
    """Holds many things."""
    return list(items)


def annotated(
    whole: int = 0,
    number: float = 0.0,
    flag: bool = False,
    text: str = "",
    maybe: Optional[int] = None,  # noqa: UP045 (as third parties write it)
    either: Union[int, str] = 0,  # noqa: UP007
    choice: Literal["a", "b"] = "a",
    color: Color = Color.RED,
    shape: Shape | None = None,
    square: Square | None = None,
    function: Callable[[int], int] | None = None,
    functions: Sequence[Callable[[], Part]] = (),
    numbers: tuple[int, int] = (0, 0),
    names: Sequence[str] = (),
    by_name: dict[str, int] | None = None,
    same: Callable[[T], T] | T | None = None,
) -> None:
    """Every kind of annotation that a constructor may have."""


def whole_graph() -> fdl.Config[Outer]:
    """A graph with everything in it that a file can hold."""
    shared = fdl.Config(Part, width=Width.new())
    block = fdl.Partial(Part, width=Depth.new(), child=fdl.ArgFactory(Wide, InnerWidth.new()))
    fdl.add_tag(block, "other", Rate)
    fdl.add_tag(block, "other", Extra)
    block.other = {"tuple": (1, -2.5, float("inf")), "nothing": None, "yes": True, "text": "a→b"}
    return fdl.Config(
        Outer,
        width=Width.new(3),
        depth=Depth.new(fdl.Config(scaled, number=Width.new(), ratio=Rate.new())),
        rate=Rate.new(),
        child=[shared, block, fdl.Config(holding, [shared, Width.new(), Width.new(5)])],
        other=[
            fdl.Config(product, Width.new(), 2, fdl.Config(double, Width.new())),
            fdl.Config(positional, Width.new(), depth=4),
            fdl.Config(keywords, a=Width.new(), b=1),
            fdl.Config(Square.unit),
            fdl.Config(Options),
            (Color.BLUE, pathlib.Path("a/b"), Square, Options(2, ["x"])),
        ],
    )
