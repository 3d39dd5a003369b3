"""What fits an annotation, and what docstrings document of callables and their parameters."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import fiddle as fdl
import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.graph.docs import Docs, doc_of, first_sentence
from fidgpt.graph.hints import fits, hint_of

from .parts import Color, Part, Shape, Square, Wide, Width, double, keywords, product

VALUES = [
    (1, int, True),
    (1.0, int, False),
    (True, int, False),
    (1, float, True),
    (True, float, False),
    ("c", Literal["a", "b"], False),
    ("RED", Color, False),
    (double, Callable[[int], int], True),
    (Square(), Shape, True),
    (nn.Linear, type[nn.Module], True),
    (torch.zeros(2, 3), Float[Tensor, "rows columns"], True),
    (object(), "Decimal", True),
    ([1, True], list[int], False),
    ([1, 2], tuple[int, int], False),
    ((1, "2"), tuple[int, ...], False),
    ({"a": "1"}, Mapping[str, int], False),
    ("text", Sequence[str], False),  # it would be taken for its letters
    ("text", list[str] | str, True),
]


if TYPE_CHECKING:
    from decimal import Decimal


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


class Runs(Protocol):
    """What can be run."""

    def run(self) -> None: ...


class Runner:
    """Runs."""

    def run(self) -> None:
        pass


def as_base(width: int = 1) -> Base:
    """Returns something that may be narrower than its annotation."""
    return Derived()


def unresolved(amount: "Decimal", width: int) -> "Decimal":
    """Has an annotation that only a type checker can resolve."""
    return amount


PARTS = [
    (fdl.Config(Square), Square, True),
    (fdl.Config(Wide, width=1), Part, True),
    (fdl.Config(Part, width=1), Wide, False),  # a class makes exactly its own
    (fdl.Config(as_base), Derived, True),  # a function may return something narrower
    (fdl.Config(Square), Shape, True),
    (fdl.Config(double, number=1), str, False),
    (fdl.Config(nn.Linear, 1, 1), nn.Module, True),
    (fdl.Config(nn.Linear, 1, 1), Callable[[Tensor], Tensor], True),
    (fdl.Config(Square), Callable[..., int], False),
    (fdl.Partial(Square), Callable[..., Part], False),
    (fdl.Partial(Square), Runs, False),  # a partial has no method `run`
    (fdl.Config(Square), Runs, False),
    (fdl.Config(Runner), Runs, True),
    (Part, Callable[[], Square], False),
    (fdl.Partial(Square), Square, False),
    ([fdl.Partial(Square), fdl.Partial(Part)], Sequence[Callable[[], Square]], False),
    ([Width.new(3), Width.new()], list[int], True),
]


@pytest.mark.parametrize(("value", "hint", "expected"), [*VALUES, *PARTS])
def test_values_and_parts(value: Any, hint: Any, expected: bool) -> None:
    assert fits(value, hint) is expected


@pytest.mark.parametrize(
    ("part", "key", "hint"),
    [
        (fdl.Config(product, 1, 2), 1, int),
        (fdl.Config(keywords), "whatever", int),
        (fdl.Config(unresolved), "width", int),  # one that cannot be resolved spoils no other
        (fdl.Config(unresolved), "amount", Any),
    ],
)
def test_the_annotation_of_a_parameter(part: fdl.Buildable, key: Any, hint: Any) -> None:
    assert hint_of(part, key) == hint


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


@pytest.mark.parametrize(
    ("described", "summary", "parameters"),
    [
        (painted, "Paints a wall.", PAINTED),
        (Wall, "Stands around a room (see Brick et al., 1999, for why).",
         {"height": "how high it is.", "width": "how wide it is."}),
        (Thick, "Keeps the noise out.", {"width": "how thick it is.", "height": "how high it is."}),
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


def test_a_sentence_ends_after_a_word_but_not_after_an_abbreviation() -> None:
    assert first_sentence("Return the total. It is 3.") == "Return the total."
    assert first_sentence("As in Yu et al. A sum. It is 3.") == "As in Yu et al. A sum."
