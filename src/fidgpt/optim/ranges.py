"""What the numbers of an optimizer may be: each check raises ValueError with the remedy."""

from fidgpt.ranges import require_not_negative


def require_rates(*, lr: float, weight_decay: float) -> None:
    """Raises ValueError unless both are finite and 0 or more."""
    require_not_negative("lr", lr)
    require_not_negative("weight_decay", weight_decay)


def require_adam(*, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    """Raises ValueError unless these are numbers that Adam can step with."""
    require_rates(lr=lr, weight_decay=weight_decay)
    require_betas(betas)
    require_not_negative("eps", eps)


def require_betas(betas: tuple[float, float]) -> None:
    """Raises ValueError unless each is from 0 to below 1."""
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"{betas=} must be from 0 to less than 1.")
