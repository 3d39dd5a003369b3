"""Annotations are checked while tests run: types, shapes, and that sizes of one name agree."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from checked import checked
from jaxtyping import Float, Int, TypeCheckError
from torch import Tensor

from fidgpt import model

Pairs = Float[Tensor, "rows two"]
REFUSED = (BeartypeCallHintViolation, TypeCheckError)
check = checked(typechecker=beartype)


@check
def plain(number: int, way: Literal["up", "down"] = "up") -> int:
    return number if way == "up" else "down"  # type: ignore


@check
def joined(one: Float[Tensor, "rows width"], other: Float[Tensor, "rows width"] | None) -> Pairs:
    return one if other is None else inner(torch.cat([one, other], 1))


@check
def inner(one: Float[Tensor, "rows width"]) -> Float[Tensor, "rows half"]:
    return one[:, ::2]


@check
def rows_of(pair: "Pairs", index: "Int[Tensor, ' rows']") -> "Pairs":
    return pair[index]


@check
def each(pair: Pairs, other: Pairs) -> Iterator[Pairs]:
    yield pair
    yield other


class Part:
    @classmethod
    @check
    def made(cls, widths: list[int], *, table: Pairs | None = None) -> "Part":
        return cls()


PAIR = torch.zeros(3, 2)


def test_what_is_right_passes() -> None:
    assert plain(3) == 3
    assert joined(PAIR, None).shape == (3, 2)
    assert joined(PAIR, PAIR).shape == (3, 2)  # `width` is 4 in the function that it calls
    assert rows_of(PAIR, torch.arange(3)).shape == (3, 2)
    assert len([*each(PAIR, PAIR)]) == 2
    assert isinstance(Part.made([1], table=PAIR), Part)


@pytest.mark.parametrize(
    "call",
    [
        lambda: plain("3"),
        lambda: plain(3, "down"),  # returns a text
        lambda: joined(PAIR, PAIR[:2]),
        lambda: joined(torch.zeros(3, 2), torch.zeros(3, 4)),
        lambda: rows_of(PAIR, torch.arange(2)),
        lambda: each(PAIR, PAIR[:1]),
        lambda: Part.made([1], table=PAIR[0]),
    ],
)
def test_what_is_wrong_is_refused(call: Any) -> None:
    with pytest.raises(REFUSED):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: model.RMSNorm(hidden_dim="8"),  # type: ignore
        lambda: model.RMSNorm(hidden_dim=8)(torch.zeros(2, 8, dtype=torch.long)),
    ],
)
def test_the_library_is_checked(call: Any) -> None:
    with pytest.raises(REFUSED):
        call()
