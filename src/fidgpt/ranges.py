"""Range checks of arguments; each raises ValueError with the remedy."""

import math

_LARGEST = 2**31 - 1


def require_size(name: str, size: int | None) -> None:
    """Raise ValueError unless a size is None, or from 1 to 2**31 - 1."""
    if size is not None and size < 1:
        raise ValueError(f"{name}={size!r} must be 1 or more.")
    if size is not None and size > _LARGEST:
        raise ValueError(f"{name}={size!r} must be at most {_LARGEST}.")


def require_probability(name: str, share: int | float) -> None:
    """Raise ValueError unless a probability is in [0, 1)."""
    if not 0 <= share < 1:
        raise ValueError(f"{name}={share!r} must be in [0, 1).")


def require_positive(name: str, number: int | float | None) -> None:
    """Raise ValueError unless a number is None, or finite and above 0."""
    if number is not None and not 0 < number < math.inf:
        raise ValueError(f"{name}={number!r} must be above 0, and finite.")


def require_not_negative(name: str, number: int | float | None) -> None:
    """Raise ValueError unless a number is None, or finite and 0 or more."""
    if number is not None and not 0 <= number < math.inf:
        raise ValueError(f"{name}={number!r} must be 0 or more, and finite.")


def require_factor(name: str, factor: int | float | None) -> None:
    """Raise ValueError unless a factor is None, or finite and not 0."""
    if factor is not None and (factor == 0 or not math.isfinite(factor)):
        raise ValueError(f"{name}={factor!r} must be finite and not 0.")
