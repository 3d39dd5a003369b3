"""Which checkpoints are saved and kept."""

import itertools
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fidgpt.ranges import require_positive, require_size

__all__ = ["EveryMinutes", "KeepBest", "KeepEvery"]

# Why a checkpoint was saved.
REGULAR, PERMANENT, BEST, TEMPORARY = "regular", "permanent", "best", "temporary"


class KeepEvery:
    """Saves every `every` steps until step `until`, and keeps those checkpoints permanently.

    Args:
        every: in steps.
        until: the last step that this applies to; None for no end.
    """

    def __init__(self, *, every: int, until: int | None = None) -> None:
        require_size("every", every)
        require_size("until", until)
        if until is not None and until < every:
            raise ValueError(f"{every=} and {until=} keep nothing: step {every} is after the end.")
        self.every = every
        self.until = until


class EveryMinutes:
    """Saves once some time has passed since the last checkpoint, and deletes the one before it.

    Args:
        minutes: by the main process's monotonic clock.
        clock: returns seconds.
    """

    def __init__(self, minutes: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        require_positive("minutes", minutes)
        self.minutes = minutes
        self._clock = clock
        self._last = clock()

    def start(self) -> None:
        """Count time from now."""
        self._last = self._clock()

    def due(self) -> bool:
        """Return whether the time has passed."""
        return self._clock() - self._last >= 60 * self.minutes


class KeepBest:
    """Keeps the checkpoint with the best value of a metric, and saves each new best.

    Args:
        metric: its name in the rows of numbers, such as `validation/loss`.
        better: whether its first number is better than its second; lower is better by default.
    """

    def __init__(
        self, metric: str, *, better: Callable[[float, float], bool] = operator.lt
    ) -> None:
        self.metric = metric
        self.better = better
        self._has_warned = False

    def missing(self, row: Mapping[str, Any]) -> str | None:
        """Return a warning, once, if its evaluator measured other metrics but not this one."""
        name = self.metric.partition("/")[0]
        measured = [key for key in row if key.startswith(f"{name}/")]
        if self._has_warned or not measured or self.metric in row:
            return None
        self._has_warned = True
        return (
            f"warning: no best checkpoint is kept: nothing measures {self.metric}; "
            f"{name} measures {', '.join(measured)}."
        )


class Saved(NamedTuple):
    """A checkpoint as a policy sees it.

    Attributes:
        step: after which it was saved.
        reasons: why it was saved; not recorded by old versions.
        metrics: at this step, as far as a policy needs them.
    """

    step: int
    reasons: Sequence[str] = (REGULAR,)
    metrics: Mapping[str, float] = {}


def check_keep(keep: Sequence[KeepEvery]) -> None:
    """Raise ValueError unless each entry of `keep` ends later than the one before it."""
    for number, (one, following) in enumerate(itertools.pairwise(keep)):
        if one.until is None or (following.until is not None and following.until <= one.until):
            raise ValueError(
                f"keep[{number}] ends at until={one.until} and keep[{number + 1}] at "
                f"until={following.until}: each must end later than the one before, and only the "
                "last may have no end."
            )


def is_permanent(step: int, keep: Sequence[KeepEvery]) -> bool:
    """Return whether the first entry of `keep` that covers a step saves there."""
    reaching = (part for part in keep if part.until is None or step <= part.until)
    part = next(reaching, None)
    return part is not None and step > 0 and step % part.every == 0


def best_of(saved: Sequence[Saved], best: KeepBest) -> Saved | None:
    """Return the best by its metric, the first of equals; None if none has the metric."""
    chosen: Saved | None = None
    for one in saved:
        value = one.metrics.get(best.metric)
        if value is None or value != value:  # not a number
            continue
        if chosen is None or best.better(value, chosen.metrics[best.metric]):
            chosen = one
    return chosen


def retained(saved: Sequence[Saved], *, keep_last: int, best: KeepBest | None) -> set[int]:
    """Return the steps whose checkpoints are kept once the newest of `saved` is written.

    Kept are permanent ones, the newest `keep_last` regular ones, the best, and the newest of all. A
    temporary one is deleted as soon as another follows it.
    """
    ordered = sorted(saved, key=lambda one: one.step)
    regular = [one.step for one in ordered if REGULAR in one.reasons]
    kept_steps = {one.step for one in ordered if PERMANENT in one.reasons}
    kept_steps |= set(regular[-keep_last:])
    if best is not None and (chosen := best_of(ordered, best)) is not None:
        kept_steps.add(chosen.step)
    return kept_steps | {one.step for one in ordered[-1:]}


def saved_of(step: int, notes: Mapping[str, Any]) -> Saved:
    """Return a checkpoint as its manifest describes it."""
    return Saved(step, notes.get("reasons", (REGULAR,)), notes.get("metrics", {}))
