"""What fits an annotation: values, containers of them, and parts for what they build."""

import collections
import dataclasses
import pathlib
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, TypeVar

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.graph.hints import element_hint, fits, hints_of, name_of

from .parts import Color, Shape, Size, Square, double

T = TypeVar("T")
Whole = NewType("Whole", int)


class Words(typing.TypedDict):
    """A dict of a known form."""

    word: str


VALUES = [
    (1, int, True),
    (1.0, int, False),
    (True, int, False),
    ("1", int, False),
    (None, int, False),
    (1, float, True),
    (True, float, False),
    ("nan", float, False),
    (0, bool, False),
    (False, bool, True),
    (True, Whole, False),
    (1, Whole, True),
    (1, Annotated[int, "in elements"], True),
    (None, typing.Optional[int], True),  # noqa: UP045 (as third parties write it)
    (True, typing.Optional[int], False),  # noqa: UP045
    ("a", int | str, True),
    (1.5, typing.Union[int, str], False),  # noqa: UP007
    ("a", Literal["a", "b"], True),
    ("c", Literal["a", "b"], False),
    (Color.RED, Color, True),
    ("RED", Color, False),
    ("x", str, True),
    (pathlib.Path("x"), str, False),
    (double, Callable[[int], int], True),
    (3, Callable[[int], int], False),
    (Square(), Shape, True),
    (nn.Linear, type[nn.Module], True),
    (Square, type[nn.Module], False),
    (torch.zeros(2, 3), Float[Tensor, "rows columns"], True),
    (torch.zeros(2, 3), Float[Tensor, "rows"], False),
    (object(), T, True),
    (object(), "Decimal", True),
    (object(), Any, True),
]

CONTAINERS = [
    ([1, 2], list[int], True),
    ([1, True], list[int], False),
    ([1, "2"], Sequence[int], False),
    ((1, 2), Sequence[int], True),
    ((1, 2), list[int], False),
    ([1, 2], tuple[int, int], False),
    ((1, 2), tuple[int, int], True),
    ((1, 2, 3), tuple[int, int], False),
    ((1, 2, 3), tuple[int, ...], True),
    ((1, "2"), tuple[int, ...], False),
    ([1], Collection[int], True),
    (["1"], Collection[int], False),
    ([1], Iterable[float], True),
    ([1], typing.List[int], True),  # noqa: UP006
    ([], list, True),
    ([1], object, True),
    ([1], int, False),
    ([1], set[int], False),
    ({1}, set[int], True),
    ({"1"}, set[int], False),
    ({"a": 1}, dict[str, int], True),
    ({"a": "1"}, Mapping[str, int], False),
    ({1: 1}, Mapping[str, int], False),
    ({"a": 1}, Mapping, True),
    ({"a": 1}, list[int], False),
    ({"word": "a"}, Words, True),
    ({"word": 1}, Words, False),
    ({"wort": "a"}, Words, False),
    ({}, Words, False),
    ("text", Sequence[str], False),  # it would be taken for its letters
    ("text", Iterable[str], False),
    ("text", list[str] | str, True),
    (Size(1, 2), Size, True),
    ((1, 2), Size, False),
    (Size(1, 2), tuple[int, int], True),
    ([[1], [2]], list[list[int]], True),
    ([[1], ["2"]], list[list[int]], False),
    (collections.deque([1]), collections.deque[int], True),
    (None, list[int] | None, True),
    ([1], None | list[str] | list[int], True),
]


@pytest.mark.parametrize(("value", "hint", "expected"), VALUES)
def test_values(value: Any, hint: Any, expected: bool) -> None:
    assert fits(value, hint) is expected


@pytest.mark.parametrize(("value", "hint", "expected"), CONTAINERS)
def test_containers(value: Any, hint: Any, expected: bool) -> None:
    assert fits(value, hint) is expected


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
        (list[int], 0, int),
        (Sequence[int] | None, 3, int),
        (tuple[int, str], 1, str),
        (tuple[int, ...], 9, int),
        (dict[str, int], "a", int),
        (list[int] | dict[str, float], "a", float),
        (list[int] | dict[str, float], 0, int),
        (dict[int, float], 3, float),
        (dict[str, float], 3, Any),
        (Words | None, "word", str),
        (tuple[int, str], 5, Any),
        (list, 0, Any),
        (int, 0, Any),
    ],
)
def test_the_annotation_of_an_element(hint: Any, key: Any, expected: Any) -> None:
    assert element_hint(hint, key) is expected


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (int, "int"),
        (Square | None, "Square or None"),
        (Callable[..., Square], "Callable[..., Square]"),
        (Sequence[pathlib.Path], "Sequence[Path]"),
        (Literal["a", "b"], "Literal['a', 'b']"),
        (Any, "Any"),
    ],
)
def test_how_a_message_writes_an_annotation(hint: Any, text: str) -> None:
    assert name_of(hint) == text
