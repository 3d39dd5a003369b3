"""A schedule of phases: warm-up, stable and decay, once or in cycles."""

import bisect
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from fidgpt.optim.cycles import Length, cycle_ends, in_steps
from fidgpt.optim.decays import DecayShape, Fall


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
        self.check_arguments(
            num_steps=num_steps,
            warmup=warmup,
            decay=decay,
            rewarmup=rewarmup,
            cycles=cycles,
            cycle_length=cycle_length,
            min_lr_ratio=min_lr_ratio,
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

    @staticmethod
    def check_arguments(
        *,
        num_steps: int,
        warmup: Length,
        decay: Length | None,
        rewarmup: Length,
        cycles: int | Sequence[int] | None,
        cycle_length: Length | Sequence[int] | None,
        min_lr_ratio: float,
    ) -> None:
        """Raises ValueError unless all phases of all cycles fit, and the floor is a share."""
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
