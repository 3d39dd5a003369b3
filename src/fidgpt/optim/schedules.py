"""Learning-rate schedules."""

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from fidgpt.optim.cycles import Length, cycle_ends, in_steps

__all__ = [
    "Constant",
    "CosineDecay",
    "DecayShape",
    "Fall",
    "InverseDecay",
    "InverseSqrtDecay",
    "LinearDecay",
    "NoDecay",
    "Phases",
    "PolynomialDecay",
    "SqrtDecay",
    "WarmupCosine",
    "WarmupStableDecay",
    "fraction",
    "steps_for_tokens",
]


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
        _require_share(min_ratio)
        _require_room(num_steps=num_steps, warmup_steps=warmup_steps)
        self.num_steps = num_steps
        self.warmup_steps = warmup_steps
        self.min_ratio = min_ratio

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
        _require_share(min_ratio)
        _require_room(num_steps=num_steps, warmup_steps=warmup_steps, decay_steps=decay_steps)
        self.num_steps = num_steps
        self.warmup_steps = warmup_steps
        self.decay_steps = decay_steps
        self.min_ratio = min_ratio

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
        if warmup_steps < 0:
            raise ValueError(f"{warmup_steps=} must be 0 or more steps.")
        self.warmup_steps = warmup_steps

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
        if not 0 < power < math.inf:
            raise ValueError(f"{power=} does not fall: use one above 0, and finite.")
        self.power = power

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
        if timescale is not None and timescale < 1:
            raise ValueError(f"{timescale=} must be 1 or more steps, or None for the warm-up's.")
        self.timescale = timescale

    def __call__(self, fall: Fall) -> float:
        timescale = max(1, fall.warmup_steps) if self.timescale is None else self.timescale
        return max(fall.min_ratio, min(1.0, math.sqrt(timescale / (fall.warmup_steps + fall.step))))


class Phases:
    """Warm-up in a line, stable at the peak, decay; then re-warm-up, stable, decay for each cycle.

    Stable is what the others leave of a cycle. A length is a count of steps, or as a float up to 1
    a fraction of its cycle. The value at a step, counted from 0, is that of the curve at its end:
    the first step moves, and the last one of a cycle is its minimum. With a short decay it is WSD
    (Hu et al., 2024, arXiv:2404.06395), with cycles and no re-warm-up WSD-S (Wen et al., 2024,
    arXiv:2410.05192), with a linear decay a trapezoid.

    Args:
      num_steps: steps of the run; afterwards the last value stays.
      shape: how the decay falls.
      warmup: of the first cycle, from zero.
      decay: at the end of each cycle; None is all that the warm-up leaves.
      rewarmup: of each later cycle, from where the last one ended; 0 jumps back to the peak.
      cycles: how many there are, or the steps at which they end; one unless said.
      cycle_length: how long each is instead, as steps or as a share of the run, or all lengths.
      min_lr_ratio: share of the peak that a decay goes down to.

    Raises:
      ValueError: a cycle has no room for its phases, cycles do not fit into the run, or both
        `cycles` and `cycle_length` are said.
    """

    def __init__(
        self,
        *,
        num_steps: int,
        shape: DecayShape,
        warmup: Length = 0.01,
        decay: Length | None = None,
        rewarmup: Length = 0.0,
        cycles: int | Sequence[int] | None = None,
        cycle_length: Length | Sequence[int] | None = None,
        min_lr_ratio: float = 0.1,
    ) -> None:
        if not 0 <= min_lr_ratio <= 1:
            raise ValueError(f"{min_lr_ratio=} must be a share of the peak, from 0 to 1.")
        ends = cycle_ends(num_steps=num_steps, cycles=cycles, cycle_length=cycle_length)
        for cycle in _cycles(ends, warmup, decay, rewarmup):
            length, rise = cycle.end - cycle.start, f"{rewarmup=}" if cycle.start else f"{warmup=}"
            if cycle.warmup + max(0, cycle.decay) > length or cycle.decay < 0:
                taken = f"{rise} does" if decay is None else f"{rise} and {decay=} do"
                raise ValueError(
                    f"{taken} not fit into the {length} steps from {cycle.start + 1} to "
                    f"{cycle.end}: shorten it, make cycles longer, or train for longer."
                )
        self.num_steps = num_steps
        self.shape = shape
        self.min_lr_ratio = min_lr_ratio
        self.ends = cycle_ends(num_steps=num_steps, cycles=cycles, cycle_length=cycle_length)
        self._cycles: list[_Cycle] = []
        begin = 0.0
        for cycle in _cycles(self.ends, warmup, decay, rewarmup):
            self._cycles.append(cycle._replace(begin=begin))
            begin = self._value(self._cycles[-1], cycle.end - cycle.start)

    def __call__(self, step: int) -> float:
        position = min(step + 1, self.num_steps)
        cycle = self._cycles[bisect.bisect_left(self.ends, position)]
        return self._value(cycle, position - cycle.start)

    def _value(self, cycle: "_Cycle", position: int) -> float:
        """The curve so many steps after the cycle began."""
        if position <= cycle.warmup:
            return cycle.begin + (1 - cycle.begin) * (position / cycle.warmup)
        fallen = position - (cycle.end - cycle.start - cycle.decay)
        if fallen <= 0:
            return 1.0
        return self.shape(Fall(fallen, cycle.decay, cycle.warmup, self.min_lr_ratio))


class _Cycle(NamedTuple):
    """Steps from `start` to `end`, lengths of warm-up and decay, and the value to rise from."""

    start: int
    end: int
    warmup: int
    decay: int
    begin: float = 0.0


def _cycles(
    ends: Sequence[int], warmup: Length, decay: Length | None, rewarmup: Length
) -> list[_Cycle]:
    found = []
    for start, end in itertools.pairwise([0, *ends]):
        said = ("rewarmup", rewarmup) if start else ("warmup", warmup)
        rise = in_steps(*said, of=end - start)
        fall = end - start - rise if decay is None else in_steps("decay", decay, of=end - start)
        found.append(_Cycle(start, end, rise, fall))
    return found
