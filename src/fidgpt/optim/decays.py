"""Shapes of a decay: what is left of the peak at each of its steps."""

import math
from typing import NamedTuple, Protocol, runtime_checkable


class Fall(NamedTuple):
    """A step of a decay.

    Attributes:
      step: counted from 1, so that the last one is `num_steps`.
      num_steps: of the decay.
      warmup_steps: of the cycle that the decay ends.
      min_ratio: share of the peak that is to be left.
    """

    step: int
    num_steps: int
    warmup_steps: int
    min_ratio: float


@runtime_checkable
class DecayShape(Protocol):
    """Share of the peak at a step of a decay, from 1 down to `fall.min_ratio`."""

    def __call__(self, fall: Fall, /) -> float: ...


class NoDecay:
    """Stays at the peak."""

    def __call__(self, fall: Fall) -> float:
        return 1.0


class LinearDecay:
    """Falls in a line; with a plateau before it, the schedule is a trapezoid."""

    def __call__(self, fall: Fall) -> float:
        left = fall.num_steps - fall.step
        return fall.min_ratio + (1 - fall.min_ratio) * left / fall.num_steps


class CosineDecay:
    """Falls along half a cosine (Loshchilov and Hutter, 2017, arXiv:1608.03983)."""

    def __call__(self, fall: Fall) -> float:
        left = 0.5 * (1 + math.cos(math.pi * (fall.step / fall.num_steps)))
        return fall.min_ratio + (1 - fall.min_ratio) * left


class InverseDecay:
    """The inverse rises in a line, to 1 / min_ratio (WSD-S; Wen et al., 2024, arXiv:2410.05192).

    With a `min_ratio` of 0 it would be 0 from the first step of the decay on, which is refused.

    Raises:
      ValueError: when called, and so when a schedule is made with it: `min_ratio` is 0.
    """

    def __call__(self, fall: Fall) -> float:
        if not fall.min_ratio:
            raise ValueError(
                "an inverse decay to 0 of the peak would be there at its first step: say a "
                "min_lr_ratio above 0, such as 0.1, or take another shape."
            )
        done = fall.step / fall.num_steps
        return fall.min_ratio / (fall.min_ratio * (1 - done) + done)


class SqrtDecay:
    """Falls by the square root of what is done (Hägele et al., 2024, arXiv:2405.18392)."""

    def __call__(self, fall: Fall) -> float:
        left = 1 - math.sqrt(fall.step / fall.num_steps)
        return fall.min_ratio + (1 - fall.min_ratio) * left


class PolynomialDecay:
    """(1 - done) ** power, between peak and floor: a line at 1, below it for greater powers.

    Args:
      power: above 0.
    """

    def __init__(self, *, power: float = 2.0) -> None:
        self.check_arguments(power=power)
        self.power = power

    @staticmethod
    def check_arguments(*, power: float) -> None:
        """Raises ValueError unless the power is above 0."""
        if not 0 < power < math.inf:
            raise ValueError(f"{power=} does not fall: use one above 0, and finite.")

    def __call__(self, fall: Fall) -> float:
        left = (1 - fall.step / fall.num_steps) ** self.power
        return fall.min_ratio + (1 - fall.min_ratio) * left


class InverseSqrtDecay:
    """sqrt(timescale / steps since the cycle began), a plateau not counted, at most 1.

    It never falls below the floor, and need not reach it (Vaswani et al., 2017, arXiv:1706.03762;
    Raffel et al., 2020, arXiv:1910.10683, with a timescale of 10,000).

    Args:
      timescale: steps after which it begins to fall; those of the warm-up where None.
    """

    def __init__(self, *, timescale: int | None = 10_000) -> None:
        self.check_arguments(timescale=timescale)
        self.timescale = timescale

    @staticmethod
    def check_arguments(*, timescale: int | None) -> None:
        """Raises ValueError unless the timescale is a number of steps."""
        if timescale is not None and timescale < 1:
            raise ValueError(f"{timescale=} must be 1 or more steps, or None for the warm-up's.")

    def __call__(self, fall: Fall) -> float:
        timescale = max(1, fall.warmup_steps) if self.timescale is None else self.timescale
        return max(fall.min_ratio, min(1.0, math.sqrt(timescale / (fall.warmup_steps + fall.step))))
