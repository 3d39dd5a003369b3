"""Learning-rate schedules."""

import bisect
import itertools
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fidgpt.ranges import require_not_negative, require_positive, require_size
from fidgpt.schedule import Schedule

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
    "Rise",
    "SqrtDecay",
    "Switched",
    "WarmupCosine",
    "WarmupStableDecay",
    "fraction",
    "steps_for_tokens",
    "tokens_for_parameters",
]


def fraction(*, of: int, ratio: float) -> int:
    """Return a fraction of a number of steps, at least one; such as the warm-up of a run.

    Raises:
      ValueError: the ratio is not from 0 to 1.
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"{ratio=} must be a fraction of {of} steps, from 0 to 1.")
    return max(1, round(of * ratio))


Length = int | float
"""A number of steps, or, if a float up to 1, a fraction."""


def tokens_for_parameters(*, parameters: int, tokens_per_parameter: float | int) -> int:
    """Return the number of tokens for a number of parameters, rounded up.

    Raises:
      ValueError: `tokens_per_parameter` is not above 0, or infinite.
    """
    require_positive(tokens_per_parameter=tokens_per_parameter)
    return math.ceil(tokens_per_parameter * parameters)


def steps_for_tokens(
    *, tokens: int, batch_size: int, seq_len: int, growth: Length = 0, multiple_of: int = 1
) -> int:
    """Return the number of optimizer steps for a number of tokens, rounded up.

    Args:
      tokens: tokens of the run.
      batch_size: sequences per step, once batches have grown.
      seq_len: tokens per sequence; growing sequences leave the tokens of a batch as they are.
      growth: length of the linear growth of batches, in steps or as a fraction of the run.
      multiple_of: granularity of growing batches, as in `GrowingBatch`.

    Raises:
      ValueError: an argument is below 1.
    """
    if min(tokens, batch_size, seq_len, multiple_of) < 1:
        raise ValueError(
            f"{tokens=}, {batch_size=}, {seq_len=} and {multiple_of=} must each be 1 or more."
        )
    wanted = -(-tokens // seq_len)  # sequences

    def is_enough(steps: int) -> bool:
        rising = in_steps("growth", growth, of=steps)
        rates = np.arange(1, min(rising, steps) + 1) / max(1, rising)
        units = np.maximum(1, (rates * batch_size / multiple_of + 1e-9).astype(np.int64))
        grown = np.minimum(units * multiple_of, batch_size).sum()
        return int(grown) + max(0, steps - rising) * batch_size >= wanted

    most = -(-wanted // batch_size)
    least = most - 1
    while not is_enough(most):
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if is_enough(middle) else (middle, most)
    return most


class Constant:
    """Linear warm-up, then a constant rate.

    Args:
      warmup_steps: steps of the warm-up.

    Raises:
      ValueError: warmup_steps is negative.
    """

    ALIASES: ClassVar[Mapping[str, str]] = {"warmup": "warmup_steps"}

    def __init__(self, *, warmup_steps: int = 0) -> None:
        require_not_negative(warmup_steps=warmup_steps)
        self.warmup_steps = warmup_steps

    def __call__(self, step: int) -> float:
        return min(1.0, (step + 1) / max(1, self.warmup_steps))


class Rise:
    """A linear rise from a fraction of the peak to the peak, and a constant value after it.

    Args:
      num_steps: steps of the rise.
      begin: fraction of the peak at its beginning.
      first: 1 for the value of a step at its end; 0 for that at its beginning.

    Raises:
      ValueError: num_steps is below 1, or `begin` no fraction.
    """

    def __init__(self, *, num_steps: int, begin: float = 0.0, first: int = 1) -> None:
        require_size(num_steps=num_steps)
        _require_share("begin", begin)
        self.num_steps = num_steps
        self.begin = begin
        self.first = first

    def __call__(self, step: int) -> float:
        risen = min(1.0, (step + self.first) / self.num_steps)
        return self.begin + (1 - self.begin) * risen


class Switched:
    """One schedule before a step, counted from 0, and another one from it on.

    Args:
      step: the first step of the second one.
      before: the first schedule.
      after: the second one, which is called with the steps of the run.
    """

    def __init__(self, *, step: int, before: Schedule, after: Schedule) -> None:
        require_not_negative(step=step)
        self.step = step
        self.before = before
        self.after = after

    def __call__(self, step: int) -> float:
        return (self.before if step < self.step else self.after)(step)


def in_steps(name: str, length: Length, *, of: int) -> int:
    """Return a length in steps; a fraction above 0 is at least one step.

    Args:
      name: name of the length, for error messages.
      length: steps, or a fraction of `of`.
      of: steps that a fraction refers to.

    Raises:
      ValueError: the length is negative, or neither a fraction nor a whole number.
    """
    if not 0 <= length < math.inf or (length > 1 and length != int(length)):
        raise ValueError(f"{name}={length} is neither a fraction from 0 to 1 nor a count of steps.")
    if isinstance(length, int) or length > 1:
        return int(length)
    # The factor compensates for rounding: 0.29 * 100 is 28.999999999999996.
    return max(1, int(length * of * (1 + 1e-12))) if length else 0


def cycle_ends(
    *,
    num_steps: int,
    cycles: int | Sequence[int] | None,
    cycle_length: Length | Sequence[int] | None,
) -> list[int]:
    """Return the steps, counted from 1, at which cycles end; the last one is `num_steps`.

    Args:
      num_steps: steps of the run.
      cycles: the number of cycles, of equal length; or the steps at which they end.
      cycle_length: the length of each cycle, in steps or as a fraction of the run, or a list of
        lengths in steps. The remainder extends the last cycle; after a list, it forms one more
        cycle.

    Raises:
      ValueError: both are set, or the cycles do not fit into the run.
    """
    if cycles is not None and cycle_length is not None:
        raise ValueError(f"{cycles=} and {cycle_length=} cannot both be set: remove one.")
    listed = cycles
    if isinstance(cycle_length, Sequence):
        listed = [*itertools.accumulate(cycle_length)]
    if isinstance(listed, Sequence):
        ends = [*listed] if [*listed[-1:]] == [num_steps] else [*listed, num_steps]
    elif isinstance(cycle_length, int | float):
        length = in_steps("cycle_length", cycle_length, of=num_steps)
        ends = [*range(length, num_steps - length + 1, max(1, length)), max(length, num_steps)]
    else:
        count = 1 if listed is None else listed
        ends = [num_steps * number // count for number in range(1, count + 1)]
    falls = any(end <= begin for begin, end in itertools.pairwise([0, *ends]))
    if falls or ends[-1:] != [num_steps]:
        setting = f"{cycle_length=}" if cycles is None else f"{cycles=}"
        raise ValueError(
            f"{setting} makes cycles that end at the steps {reprlib.repr(ends)}, which must "
            f"increase from 1 up to {num_steps=}."
        )
    return ends


class Fall(NamedTuple):
    """The position of a step within a decay.

    Attributes:
      step: step of the decay, from 1 to `num_steps`.
      num_steps: steps of the decay.
      warmup_steps: steps of the same cycle's warm-up.
      min_ratio: fraction of the peak at the end.
    """

    step: int
    num_steps: int
    warmup_steps: int
    min_ratio: float

    def to(self, left: float) -> float:
        """Return the value at which the fraction `left` of the decay to the minimum remains."""
        return self.min_ratio + (1 - self.min_ratio) * left


@runtime_checkable
class DecayShape(Protocol):
    """Returns the fraction of the peak at a step of a decay, from 1 down to `fall.min_ratio`."""

    def __call__(self, fall: Fall, /) -> float: ...


class NoDecay:
    """Stays at the peak."""

    def __call__(self, fall: Fall) -> float:
        return 1.0


class LinearDecay:
    """Linear decay; with a stable phase, the schedule is a trapezoid."""

    def __call__(self, fall: Fall) -> float:
        left = fall.num_steps - fall.step
        return fall.min_ratio + (1 - fall.min_ratio) * left / fall.num_steps


class CosineDecay:
    """Cosine decay (Loshchilov and Hutter, 2017, arXiv:1608.03983)."""

    def __call__(self, fall: Fall) -> float:
        return fall.to(0.5 * (1 + math.cos(math.pi * (fall.step / fall.num_steps))))


class InverseDecay:
    """Decay whose inverse grows linearly to 1 / min_ratio (WSD-S, arXiv:2410.05192).

    Args:
      cycles: cycles of a schedule that sets neither `cycles` nor `cycle_length`.

    Raises:
      ValueError: `min_ratio` is 0; raised when called, and so when a schedule is constructed.
    """

    def __init__(self, *, cycles: int | Sequence[int] | None = None) -> None:
        self.cycles = cycles

    def __call__(self, fall: Fall) -> float:
        if not fall.min_ratio:
            raise ValueError(
                "an inverse decay to 0 would be 0 from its first step on; set min_lr_ratio above "
                "0, such as 0.1, or use another shape."
            )
        done = fall.step / fall.num_steps
        return fall.min_ratio / (fall.min_ratio * (1 - done) + done)


class SqrtDecay:
    """1 - sqrt decay (Hägele et al., 2024, arXiv:2405.18392)."""

    def __call__(self, fall: Fall) -> float:
        return fall.to(1 - math.sqrt(fall.step / fall.num_steps))


class PolynomialDecay:
    """Polynomial decay, (1 - progress) ** power.

    Args:
      power: exponent, above 0; 1 is linear.

    Raises:
      ValueError: the power is not above 0 and finite.
    """

    def __init__(self, *, power: float = 2.0) -> None:
        require_positive(power=power)
        self.power = power

    def __call__(self, fall: Fall) -> float:
        return fall.to((1 - fall.step / fall.num_steps) ** self.power)


class InverseSqrtDecay:
    """sqrt(timescale / steps since the cycle began, excluding the stable phase), at most 1.

    It is clipped at the minimum, which it may not reach (Vaswani et al., 2017, arXiv:1706.03762;
    Raffel et al., 2020, arXiv:1910.10683, with a timescale of 10,000).

    Args:
      timescale: steps after which the decay begins; None for the length of the warm-up.

    Raises:
      ValueError: timescale is below 1.
    """

    def __init__(self, *, timescale: int | None = 10_000) -> None:
        require_size(timescale=timescale)
        self.timescale = timescale

    def __call__(self, fall: Fall) -> float:
        timescale = max(1, fall.warmup_steps) if self.timescale is None else self.timescale
        return max(fall.min_ratio, min(1.0, math.sqrt(timescale / (fall.warmup_steps + fall.step))))


class Phases:
    """Cycles of linear warm-up, a stable phase at the peak, and decay.

    The stable phase is the rest of a cycle. Lengths are numbers of steps or, if floats up to 1,
    fractions of their cycle. The value of a step is that at its end: the first step is above 0, and
    the last step of a cycle is at the minimum. With a short decay this is WSD (Hu et al., 2024,
    arXiv:2404.06395); with cycles and no re-warm-up, WSD-S (Wen et al., 2024, arXiv:2410.05192).

    Args:
      num_steps: steps of the run; later steps keep the last value.
      shape: shape of the decay.
      warmup: length of the first cycle's warm-up, from zero.
      decay: length of the decay at the end of each cycle; None for all steps after the warm-up.
      rewarmup: length of each later cycle's warm-up, from the value at which the previous cycle
        ended; 0 jumps back to the peak.
      cycles: number of cycles, or the steps at which they end; defaults to the cycles of the shape,
        which `InverseDecay` may have, or to one.
      cycle_length: alternative to `cycles`; see `cycle_ends`.
      min_lr_ratio: fraction of the peak at the end of a decay.
      first: 1 for the value of a step at its end; 0 for that at its beginning, as in optax, where
        a warm-up begins with a step at 0 and no step is at the minimum.

    Raises:
      ValueError: `first` is neither 0 nor 1, the phases do not fit into a cycle or the cycles into
        the run, or both `cycles` and `cycle_length` are set.
    """

    # What the other schedules call them, so that paths do not depend on which one is used.
    ALIASES: ClassVar[Mapping[str, str]] = {
        "warmup_steps": "warmup",
        "decay_steps": "decay",
        "min_ratio": "min_lr_ratio",
    }

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
        first: int = 1,
    ) -> None:
        _require_share("min_lr_ratio", min_lr_ratio)
        if first not in (0, 1):
            raise ValueError(f"{first=} must be 1, for the end of a step, or 0, for its beginning.")
        self.first = first
        self.num_steps = num_steps
        self.shape = shape
        self.min_lr_ratio = min_lr_ratio
        if cycles is None and cycle_length is None:
            cycles = getattr(shape, "cycles", None)
        self.ends = cycle_ends(num_steps=num_steps, cycles=cycles, cycle_length=cycle_length)
        self._cycles: list[_Cycle] = []
        begin = 0.0
        for start, end in itertools.pairwise([0, *self.ends]):
            name, rise = ("rewarmup", rewarmup) if start else ("warmup", warmup)
            length = end - start
            up = in_steps(name, rise, of=length)
            down = length - up if decay is None else in_steps("decay", decay, of=length)
            if up + max(0, down) > length or down < 0:
                taken = f"{name}={rise} does" if decay is None else f"{name}={rise} and {decay=} do"
                raise ValueError(
                    f"{taken} not fit into the {length} steps from {start + 1} to {end}; shorten "
                    "it, make cycles longer, or train for longer."
                )
            self._cycles.append(_Cycle(start, end, up, down, begin))
            begin = self._value(self._cycles[-1], length)

    def __call__(self, step: int) -> float:
        step = min(step, self.num_steps - 1)
        cycle = self._cycles[bisect.bisect_right(self.ends, step)]
        return self._value(cycle, step + self.first - cycle.start)

    def _value(self, cycle: "_Cycle", position: int) -> float:
        """Return the value `position` steps after the start of the cycle."""
        if cycle.warmup and position <= cycle.warmup:
            return cycle.begin + (1 - cycle.begin) * (position / cycle.warmup)
        fallen = position - (cycle.end - cycle.start - cycle.decay)
        if fallen <= 0:
            return 1.0
        return self.shape(Fall(fallen, cycle.decay, cycle.warmup, self.min_lr_ratio))


class _Cycle(NamedTuple):
    """Steps from `start` to `end`, lengths of warm-up and decay, and the initial value."""

    start: int
    end: int
    warmup: int
    decay: int
    begin: float


_AS_STEPS = {"warmup": "warmup_steps", "min_lr_ratio": "min_ratio"}


class WarmupCosine(Phases):
    """Linear warm-up, then cosine decay to `min_ratio` (Loshchilov and Hutter, 2017).

    Args:
      num_steps: steps of the run; the last one is at `min_ratio`.
      warmup_steps: steps of the warm-up; the first step is at 1 / warmup_steps of the peak.
      min_ratio: fraction of the peak at the end.

    Raises:
      ValueError: the warm-up is longer than the run, or `min_ratio` is not from 0 to 1.
    """

    ALIASES = _AS_STEPS

    def __init__(self, *, num_steps: int, warmup_steps: int, min_ratio: float = 0.1) -> None:
        _require_share("min_ratio", min_ratio)
        _require_room(num_steps=num_steps, warmup_steps=warmup_steps)
        super().__init__(
            num_steps=num_steps, shape=CosineDecay(), warmup=warmup_steps, min_lr_ratio=min_ratio
        )


class WarmupStableDecay(Phases):
    """Linear warm-up, a plateau, then linear decay (WSD; Hu et al., 2024, arXiv:2404.06395).

    Args:
      num_steps: steps of the run; the last one is at `min_ratio`.
      warmup_steps: steps of the warm-up.
      decay_steps: steps of the decay, at the end of the run.
      min_ratio: fraction of the peak at the end.

    Raises:
      ValueError: warm-up and decay are longer than the run, or `min_ratio` is not from 0 to 1.
    """

    ALIASES = _AS_STEPS | {"decay": "decay_steps"}

    def __init__(
        self, *, num_steps: int, warmup_steps: int, decay_steps: int, min_ratio: float = 0.0
    ) -> None:
        _require_share("min_ratio", min_ratio)
        _require_room(num_steps=num_steps, warmup_steps=warmup_steps, decay_steps=decay_steps)
        super().__init__(
            num_steps=num_steps,
            shape=LinearDecay(),
            warmup=warmup_steps,
            decay=decay_steps,
            min_lr_ratio=min_ratio,
        )


def _require_room(*, num_steps: int, warmup_steps: int, decay_steps: int = 0) -> None:
    if min(num_steps - 1, warmup_steps, decay_steps) < 0:
        raise ValueError(f"{num_steps=}, {warmup_steps=} and {decay_steps=} must not be negative.")
    if warmup_steps + decay_steps > num_steps:
        both = f"{warmup_steps=} and {decay_steps=} do" if decay_steps else f"{warmup_steps=} does"
        raise ValueError(f"{both} not fit into {num_steps=}; shorten it, or train for longer.")


def _require_share(name: str, ratio: float) -> None:
    if not 0 <= ratio <= 1:
        raise ValueError(f"{name}={ratio} must be a fraction of the peak, from 0 to 1.")
