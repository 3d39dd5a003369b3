"""What fits an annotation, and what docstrings document of callables and their parameters."""

import abc
import dataclasses
import functools
import pathlib
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NewType, Protocol, Self, TypeVar

import fiddle as fdl
import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.graph.docs import Docs, doc_of, first_sentence
from fidgpt.graph.hints import element_hint, fits, hint_of, hints_of

from .parts import Color, Part, Shape, Size, Square, Wide, Width, double, keywords, product

T = TypeVar("T")
Whole = NewType("Whole", int)


class Words(typing.TypedDict):
    """A dict of a known form."""

    word: str


VALUES = [
    (1, int, True),
    (1.0, int, False),
    (True, int, False),
    (1, float, True),
    (True, float, False),
    (1, Whole, True),
    (1, Annotated[int, "in elements"], True),
    (None, typing.Optional[int], True),  # noqa: UP045 (as third parties write it)
    ("c", Literal["a", "b"], False),
    ("RED", Color, False),
    (pathlib.Path("x"), str, False),
    (double, Callable[[int], int], True),
    (Square(), Shape, True),
    (nn.Linear, type[nn.Module], True),
    (Square, type[nn.Module], False),
    (torch.zeros(2, 3), Float[Tensor, "rows columns"], True),
    (torch.zeros(2, 3), Float[Tensor, "rows"], False),
    (object(), T, True),
    (object(), "Decimal", True),
    ([1, True], list[int], False),
    ((1, 2), list[int], False),
    ([1, 2], tuple[int, int], False),
    ((1, 2, 3), tuple[int, int], False),
    ((1, "2"), tuple[int, ...], False),
    ([1], Collection[int], True),
    ({"1"}, set[int], False),
    ({"a": "1"}, Mapping[str, int], False),
    ({1: 1}, Mapping[str, int], False),
    ({"word": "a"}, Words, True),
    ({"wort": "a"}, Words, False),
    ({}, Words, False),
    ("text", Sequence[str], False),  # it would be taken for its letters
    ("text", list[str] | str, True),
    ((1, 2), Size, False),
    ([[1], ["2"]], list[list[int]], False),
    ([1], None | list[str] | list[int], True),
]


def test_hints_are_found_without_being_hashable() -> None:
    @dataclasses.dataclass
    class Callee:
        size: int

        def __call__(self, text: str) -> int:
            return self.size

    assert hints_of(Callee(1)) == {"text": str, "return": int}


@pytest.mark.parametrize(
    ("hint", "key", "expected"),
    [
        (Sequence[int] | None, 3, int),
        (tuple[int, str], 1, str),
        (list[int] | dict[str, float], 0, int),
        (dict[int, float], 3, float),
        (dict[str, float], 3, Any),
        (tuple[int, str], 5, Any),
    ],
)
def test_the_annotation_of_an_element(hint: Any, key: Any, expected: Any) -> None:
    assert element_hint(hint, key) is expected


if TYPE_CHECKING:
    from decimal import Decimal

U = TypeVar("U")
Complete = NewType("Complete", int)


class Meta(type):
    """A metaclass whose calls return whatever they like."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return 3


class Elsewhere(metaclass=Meta):
    """A class of which a call returns something else."""


class Made:
    """A class with a `__new__` and no `__init__`."""

    def __new__(cls, width: int) -> "Made":
        return super().__new__(cls)


class Base(abc.ABC):
    """A base class, of a metaclass that changes nothing about calls."""

    @abc.abstractmethod
    def run(self) -> None: ...


class Derived(Base):
    """A class below it."""

    def run(self) -> None: ...

    @classmethod
    def make(cls, width: int) -> Self:
        return cls()


class Holder(Generic[U]):
    """A generic class."""

    def __init__(self, item: U, count: int = 1) -> None:
        self.item = item


class Runs(Protocol):
    """What can be run."""

    def run(self) -> None: ...


class Runner:
    """Runs."""

    def run(self) -> None:
        pass


class RunsWhatItGets:
    """Has a function as an attribute."""

    def __init__(self, run: Any) -> None:
        self.run = run


def as_base(width: int = 1) -> Base:
    """Returns something that may be narrower than its annotation."""
    return Derived()


def any_shape() -> Shape:
    """Returns something of which only the methods are known."""
    return Square()


def unresolved(amount: "Decimal", width: int) -> "Decimal":
    """Has an annotation that only a type checker can resolve."""
    return amount


PARTS = [
    (fdl.Config(Square), Square, True),
    (fdl.Config(Wide, width=1), Part, True),
    (fdl.Config(Part, width=1), Wide, False),  # a class makes exactly its own
    (fdl.Config(as_base), Derived, True),  # a function may return something narrower
    (fdl.Config(Square), Shape, True),
    (fdl.Config(any_shape), Square, True),
    (fdl.Config(double, number=1), str, False),
    (fdl.Config(unresolved, width=1), int, True),
    (fdl.Config(Elsewhere), int, True),
    (fdl.Config(Made, width=1), Made, True),
    (fdl.Config(Derived.make, width=1), Base, True),
    (fdl.Config(Square), type[Square], False),
    (fdl.Config(nn.Linear, 1, 1), nn.Module, True),
    (fdl.Config(nn.Linear, 1, 1), Callable[[Tensor], Tensor], True),
    (fdl.Config(Square), Callable[..., int], False),
    (fdl.Config(nn.Parameter), Float[Tensor, "rows columns"], True),
    (fdl.Config(functools.partial(double, 1)), Square, False),
    (fdl.Partial(Square), Callable[..., Part], False),
    (fdl.Partial(as_base), Callable[[], Derived], True),
    (fdl.Partial(Square), Runs, False),  # a partial has no method `run`
    (fdl.Config(Square), Runs, False),
    (fdl.Config(Runner), Runs, True),
    (fdl.Config(RunsWhatItGets, run=1), Runs, True),
    (Runner(), Runs, True),
    (Part, Callable[[], Square], False),
    (as_base, Callable[..., Square], False),
    (fdl.Partial(Square), Square, False),
    (fdl.Partial(Square), int | Callable[[], Square], True),
    ([fdl.Partial(Square), fdl.Partial(Part)], Sequence[Callable[[], Square]], False),
    ((fdl.Config(Square), 1), tuple[Square, int], True),
    ([fdl.Config(Square)], Iterator[Square], False),
    ([Width.new(3), Width.new()], list[int], True),
    ([Width.new("three")], list[int], False),
]


@pytest.mark.parametrize(("value", "hint", "expected"), [*VALUES, *PARTS])
def test_values_and_parts(value: Any, hint: Any, expected: bool) -> None:
    assert fits(value, hint) is expected


@pytest.mark.parametrize(
    ("part", "key", "hint"),
    [
        (fdl.Config(Made), "width", int),
        (fdl.Config(Derived.make), "width", int),
        (fdl.Config(Holder), "count", int),
        (fdl.Config(functools.partial(double)), "number", int),
        (fdl.Config(product, 1, 2), 1, int),
        (fdl.Config(keywords), "whatever", int),
        (fdl.Config(unresolved), "width", int),  # one that cannot be resolved spoils no other
        (fdl.Config(unresolved), "amount", Any),
    ],
)
def test_the_annotation_of_a_parameter(part: fdl.Buildable, key: Any, hint: Any) -> None:
    assert hint_of(part, key) == hint


class Steps(Protocol):
    """What is read step by step."""

    def __call__(self, step: int, /) -> float: ...


class OneStep:
    def __call__(self, step: int) -> float:
        return float(step)


class TwoThings:
    def __call__(self, features: int, targets: int) -> float:
        return 0.0


class NamedThing:
    def __call__(self, step: int, *, theta: float) -> float:
        return theta


def test_a_method_that_takes_something_else_is_not_the_one_that_is_asked() -> None:
    assert fits(fdl.Config(OneStep), Steps)
    assert not fits(fdl.Config(TwoThings), Steps)
    assert not fits(fdl.Config(NamedThing), Steps)


def painted(color: str, *layers: int, gloss: float = 0.5) -> None:
    """Paints a wall. It dries by itself.

    Args:
      color: what it looks like,
        from near and from far.
      *layers: how thick each one is.
      gloss (float): how much it shines
    """


PAINTED = {
    "color": "what it looks like, from near and from far.",
    "layers": "how thick each one is.",
    "gloss": "how much it shines",
}


class Wall:
    """Stands around a room (see Brick et al., 1999, for why)."""

    def __init__(self, height: int, width: int = 2) -> None:
        """Builds it.

        Args:
          height: how high it is.
          width: how wide it is.
        """


class Thick(Wall):
    """Keeps the noise out.

    Args:
      width: how thick it is.
    """


@dataclass
class Brick:
    """Is laid on others.

    Attributes:
      clay: what it is burnt from.
    """

    clay: str


@dataclass
class Plain:
    clay: str


class Painter:
    def __call__(self, wall: Wall) -> None:
        """Is called to paint."""


@pytest.mark.parametrize(
    ("described", "summary", "parameters"),
    [
        (painted, "Paints a wall.", PAINTED),
        (functools.partial(functools.partial(painted, "red"), 2), "Paints a wall.", PAINTED),
        (Wall, "Stands around a room (see Brick et al., 1999, for why).",
         {"height": "how high it is.", "width": "how wide it is."}),
        (Thick, "Keeps the noise out.", {"width": "how thick it is.", "height": "how high it is."}),
        (Brick, "Is laid on others.", {"clay": "what it is burnt from."}),
        (Plain, "", {}),
        (lambda: None, "", {}),
    ],
)  # fmt: skip
def test_docs(described: Any, summary: str, parameters: dict[str, str]) -> None:
    assert doc_of(described) == Docs(summary, parameters)


def test_torch_describes_its_own() -> None:
    adamw = doc_of(torch.optim.AdamW).parameters
    assert adamw["eps"].startswith("term added to the denominator to improve")
    assert adamw["betas"].startswith("coefficients used for computing running averages")
    norm = doc_of(nn.LayerNorm)
    assert norm.summary == "Applies Layer Normalization over a mini-batch of inputs."
    assert norm.parameters["normalized_shape"] == "input shape from an expected input of size"
    assert norm.parameters["elementwise_affine"].startswith("a boolean value that when set to `")
    assert "otherwise" not in norm.parameters["bias"]


def test_no_docs() -> None:
    assert doc_of(Painter()).summary == ""
    broken = functools.partial(painted)
    broken.__doc__ = "Args:\n  :::"
    assert doc_of(broken) == doc_of(painted)


def test_the_first_sentence() -> None:
    assert first_sentence("Width of the stream, in elements.\n\nAnd more.") == (
        "Width of the stream, in elements."
    )
    assert first_sentence("Half of it, e.g. 3.5 of 7. The rest waits.") == (
        "Half of it, e.g. 3.5 of 7."
    )
    assert first_sentence("Two\n    lines. More") == "Two lines."
    assert first_sentence("no end\n\nmore") == "no end"
    assert first_sentence(":class:`~torch.Tensor` and ``code`` are plain.") == (
        "torch.Tensor and `code` are plain."
    )
