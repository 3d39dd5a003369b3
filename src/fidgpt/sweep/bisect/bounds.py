"""What the two ends of a bisection came to, and which values between them are bad."""

import math
from dataclasses import dataclass

from fidgpt.graph import ConfigError
from fidgpt.sweep.bisect.minimal import Verdict
from fidgpt.sweep.results.objective import Objective


@dataclass(frozen=True)
class Bounds:
    """The values of both ends, and the one from which on others are bad.

    Attributes:
      good: of the good end.
      bad: of the bad end; nan where it diverged.
      threshold: from here on, towards the bad end, values are bad; None where nothing is but what
        diverges.
      is_larger_better: which way that is where the bad end diverged.
    """

    good: float
    bad: float
    threshold: float | None
    is_larger_better: bool = False

    def verdict(self, value: float | None) -> Verdict:
        """What a value says; nan is one that diverged, None is that there was none."""
        if value is None:
            return Verdict.UNRESOLVED
        if math.isnan(value):
            return Verdict.BAD
        if self.threshold is None:
            return Verdict.GOOD
        rises = not self.is_larger_better if math.isnan(self.bad) else self.bad > self.good
        is_bad = value >= self.threshold if rises else value <= self.threshold
        return Verdict.BAD if is_bad else Verdict.GOOD


def bounds_of(
    objective: Objective, good: float | None, bad: float | None, threshold: float | None
) -> Bounds:
    """The bounds of two ends; the threshold is half-way between them unless said.

    Raises:
      ConfigError: an end has no value, the good one has less of what is to be large, or the
        threshold does not lie between them.
    """
    name = objective.name
    if good is None or bad is None:
        which = "good" if good is None else "bad"
        raise ConfigError(f"the {which} run came to no {name}: there is nothing to compare.")
    if math.isnan(good):
        raise ConfigError("the good run diverged: exchange the two, if the other one did not.")
    if math.isnan(bad):
        return Bounds(good, bad, threshold, objective.is_larger_better)
    if good == bad:
        raise ConfigError(f"both runs came to one {name}, {good:.6g}: none of them is bad.")
    if objective.is_larger_better and good < bad:
        raise ConfigError(
            f"the good run's {name}, {good:.6g}, is less than the bad one's, {bad:.6g}, and more "
            "of it is better: exchange the two."
        )
    middle = (good + bad) / 2 if threshold is None else threshold
    low, high = sorted((good, bad))
    if not (low < middle < high or middle == bad):
        raise ConfigError(
            f"--threshold={middle:g} does not lie between the good run's {name}, {good:.6g}, "
            f"and the bad one's, {bad:.6g}."
        )
    return Bounds(good, bad, middle, objective.is_larger_better)
