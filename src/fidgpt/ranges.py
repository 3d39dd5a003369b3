"""Range checks of arguments, by their names; each raises ValueError with the remedy."""

import math
from collections.abc import Callable, Mapping
from typing import Any

_LARGEST = 2**31 - 1


def _require(
    values: Mapping[str, int | float | None], fits: Callable[[Any], bool], must: str
) -> None:
    for name, value in values.items():
        if value is not None and not fits(value):
            raise ValueError(f"{name}={value!r} must be {must}.")


def require_size(**sizes: int | None) -> None:
    """Raise ValueError unless each size is None, or from 1 to 2**31 - 1."""
    _require(sizes, lambda size: size >= 1, "1 or more")
    _require(sizes, lambda size: size <= _LARGEST, f"at most {_LARGEST}")


def require_probability(**shares: int | float) -> None:
    """Raise ValueError unless each probability is in [0, 1)."""
    _require(shares, lambda share: 0 <= share < 1, "in [0, 1)")


def require_positive(**numbers: int | float | None) -> None:
    """Raise ValueError unless each number is None, or finite and above 0."""
    _require(numbers, lambda number: 0 < number < math.inf, "above 0, and finite")


def require_not_negative(**numbers: int | float | None) -> None:
    """Raise ValueError unless each number is None, or finite and 0 or more."""
    _require(numbers, lambda number: 0 <= number < math.inf, "0 or more, and finite")


def require_factor(**factors: int | float | None) -> None:
    """Raise ValueError unless each factor is None, or finite and not 0."""
    _require(factors, lambda factor: factor != 0 and math.isfinite(factor), "finite and not 0")
