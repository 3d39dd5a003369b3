"""Which numbers a part can work with: each check raises ValueError with the remedy."""

import math

_LARGEST = 2**31 - 1


def require_size(name: str, size: int | None) -> None:
    """Raises ValueError unless a size is 1 or more and one that a machine can hold, or not said."""
    if size is not None and size < 1:
        raise ValueError(f"{name}={size!r} leaves nothing there: use 1 or more.")
    if size is not None and size > _LARGEST:
        raise ValueError(f"{name}={size!r} is more than any machine holds: use {_LARGEST} at most.")


def require_probability(name: str, share: int | float) -> None:
    """Raises ValueError unless a share, such as a dropout, is from 0 to below 1."""
    if not 0 <= share < 1:
        raise ValueError(f"{name}={share!r} must be from 0 to less than 1.")


def require_positive(name: str, number: int | float | None) -> None:
    """Raises ValueError unless a number is finite and above 0, or not said."""
    if number is not None and not 0 < number < math.inf:
        raise ValueError(f"{name}={number!r} must be above 0, and finite.")


def require_not_negative(name: str, number: int | float | None) -> None:
    """Raises ValueError unless a number is finite and 0 or more, or not said."""
    if number is not None and not 0 <= number < math.inf:
        raise ValueError(f"{name}={number!r} must be 0 or more, and finite.")


def require_factor(name: str, factor: int | float | None) -> None:
    """Raises ValueError unless a factor is finite and not 0, or not said."""
    if factor is not None and (factor == 0 or not math.isfinite(factor)):
        raise ValueError(f"{name}={factor!r} leaves no numbers: use one that is finite and not 0.")
