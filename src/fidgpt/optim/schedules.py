"""Schedules: pure functions from the step to a multiplier, most often of the learning rate."""

import math
from typing import Protocol, runtime_checkable


@runtime_checkable
class Schedule(Protocol):
    """Multiplier of the learning rate, or of another quantity, at a step counted from 0."""

    def __call__(self, step: int, /) -> float: ...


def fraction(*, of: int, ratio: float) -> int:
    """A part of a number of steps, at least one: `warmup_steps` as a share of `num_steps`.

    Raises:
      ValueError: the ratio is no share, from 0 to 1.
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"{ratio=} must be a share of {of} steps, from 0 to 1.")
    return max(1, round(of * ratio))


def steps_for_tokens(*, tokens: int, batch_size: int, seq_len: int) -> int:
    """Optimizer steps that read so many tokens, of which the last one may read more.

    Args:
      tokens: of the whole run.
      batch_size: sequences of a step.
      seq_len: tokens of a sequence.

    Raises:
      ValueError: one of them is below 1.
    """
    if min(tokens, batch_size, seq_len) < 1:
        raise ValueError(f"{tokens=}, {batch_size=} and {seq_len=} must each be 1 or more.")
    return -(-tokens // (batch_size * seq_len))


class WarmupCosine:
    """A linear rise, then half a cosine down to `min_ratio` (Loshchilov and Hutter, 2017).

    Args:
      num_steps: steps of the run; the last one ends at `min_ratio`.
      warmup_steps: steps of the rise; the first step is at 1 / warmup_steps of the peak.
      min_ratio: what is left of the peak at the end.

    Raises:
      ValueError: the warm-up is longer than the run, or `min_ratio` no share.
    """

    def __init__(self, *, num_steps: int, warmup_steps: int, min_ratio: float = 0.1) -> None:
        self.check_arguments(num_steps=num_steps, warmup_steps=warmup_steps, min_ratio=min_ratio)
        self.num_steps = num_steps
        self.warmup_steps = warmup_steps
        self.min_ratio = min_ratio

    @staticmethod
    def check_arguments(*, num_steps: int, warmup_steps: int, min_ratio: float) -> None:
        """Raises ValueError unless the warm-up fits into the run, and the floor is a share."""
        _require_share(min_ratio)
        _require_room(num_steps=num_steps, warmup_steps=warmup_steps)

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        decay = max(1, self.num_steps - self.warmup_steps)
        done = min(1.0, (step + 1 - self.warmup_steps) / decay)
        return self.min_ratio + (1 - self.min_ratio) * 0.5 * (1 + math.cos(math.pi * done))


class WarmupStableDecay:
    """A linear rise, a plateau, then a linear fall (WSD; Hu et al., 2024, arXiv:2404.06395).

    Args:
      num_steps: steps of the run; the last one ends at `min_ratio`.
      warmup_steps: steps of the rise.
      decay_steps: steps of the fall, at the end of the run.
      min_ratio: what is left of the peak at the end.

    Raises:
      ValueError: rise and fall together are longer than the run, or `min_ratio` is no share.
    """

    def __init__(
        self, *, num_steps: int, warmup_steps: int, decay_steps: int, min_ratio: float = 0.0
    ) -> None:
        self.check_arguments(
            num_steps=num_steps,
            warmup_steps=warmup_steps,
            decay_steps=decay_steps,
            min_ratio=min_ratio,
        )
        self.num_steps = num_steps
        self.warmup_steps = warmup_steps
        self.decay_steps = decay_steps
        self.min_ratio = min_ratio

    @staticmethod
    def check_arguments(
        *, num_steps: int, warmup_steps: int, decay_steps: int, min_ratio: float
    ) -> None:
        """Raises ValueError unless rise and fall fit together, and the floor is a share."""
        _require_share(min_ratio)
        _require_room(num_steps=num_steps, warmup_steps=warmup_steps, decay_steps=decay_steps)

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        left = self.num_steps - (step + 1)
        if left >= self.decay_steps:
            return 1.0
        return self.min_ratio + (1 - self.min_ratio) * max(0, left) / self.decay_steps


class Constant:
    """The peak from `warmup_steps` on.

    Args:
      warmup_steps: steps of the rise.

    Raises:
      ValueError: they are fewer than 0.
    """

    def __init__(self, *, warmup_steps: int = 0) -> None:
        self.check_arguments(warmup_steps=warmup_steps)
        self.warmup_steps = warmup_steps

    @staticmethod
    def check_arguments(*, warmup_steps: int) -> None:
        """Raises ValueError where there are fewer than 0 steps."""
        if warmup_steps < 0:
            raise ValueError(f"{warmup_steps=} must be 0 or more steps.")

    def __call__(self, step: int) -> float:
        return min(1.0, (step + 1) / max(1, self.warmup_steps))


def _require_room(*, num_steps: int, warmup_steps: int, decay_steps: int = 0) -> None:
    if min(num_steps - 1, warmup_steps, decay_steps) < 0:
        raise ValueError(f"{num_steps=}, {warmup_steps=}, {decay_steps=}: steps are counts.")
    if warmup_steps + decay_steps > num_steps:
        both = f"{warmup_steps=} and {decay_steps=} do" if decay_steps else f"{warmup_steps=} does"
        raise ValueError(f"{both} not fit into {num_steps=}: shorten it, or train for longer.")


def _require_share(min_ratio: float) -> None:
    if not 0 <= min_ratio <= 1:
        raise ValueError(f"{min_ratio=} must be a share of the peak, from 0 to 1.")
