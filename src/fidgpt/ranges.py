"""Range checks of arguments, by their names; each raises ValueError with the remedy."""

import math

_LARGEST = 2**31 - 1


def require_size(**sizes: int | None) -> None:
    """Raise ValueError unless each size is None, or from 1 to 2**31 - 1."""
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name}={size!r} must be 1 or more.")
        if size is not None and size > _LARGEST:
            raise ValueError(f"{name}={size!r} must be at most {_LARGEST}.")


def require_probability(**shares: int | float) -> None:
    """Raise ValueError unless each probability is in [0, 1)."""
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name}={share!r} must be in [0, 1).")


def require_positive(**numbers: int | float | None) -> None:
    """Raise ValueError unless each number is None, or finite and above 0."""
    for name, number in numbers.items():
        if number is not None and not 0 < number < math.inf:
            raise ValueError(f"{name}={number!r} must be above 0, and finite.")


def require_not_negative(**numbers: int | float | None) -> None:
    """Raise ValueError unless each number is None, or finite and 0 or more."""
    for name, number in numbers.items():
        if number is not None and not 0 <= number < math.inf:
            raise ValueError(f"{name}={number!r} must be 0 or more, and finite.")


def require_factor(**factors: int | float | None) -> None:
    """Raise ValueError unless each factor is None, or finite and not 0."""
    for name, factor in factors.items():
        if factor is not None and (factor == 0 or not math.isfinite(factor)):
            raise ValueError(f"{name}={factor!r} must be finite and not 0.")
