"""What the numbers of an optimizer may be: each check raises ValueError with the remedy."""

import math


def require_rates(*, lr: float, weight_decay: float) -> None:
    """Raises ValueError unless weights move down the gradient, and decay, if at all."""
    require_rate("lr", lr)
    require_rate("weight_decay", weight_decay)


def require_adam(*, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    """Raises ValueError unless these are numbers that Adam can step with."""
    require_rates(lr=lr, weight_decay=weight_decay)
    require_betas(betas)
    require_rate("eps", eps)


def require_betas(betas: tuple[float, float]) -> None:
    """Raises ValueError unless each running mean takes a share of what is new."""
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"{betas=} must be from 0 to less than 1.")


def require_rate(name: str, number: float) -> None:
    """Raises ValueError unless a rate, or a multiple of one, is finite, and 0 or more."""
    if not 0 <= number < math.inf:
        raise ValueError(f"{name}={number!r} must be 0 or more, and finite.")
