"""Weights of a mixture that move from ones to others along a schedule."""

from fidgpt.data.streams.interleaving import Weights
from fidgpt.data.streams.mixture import Stage
from fidgpt.data.streams.windows import check_positive
from fidgpt.optim.schedules import Schedule

_DECIMALS = 5  # what a mixture holds exactly


def annealed(
    *, begin: Weights, end: Weights, schedule: Schedule, num_steps: int, every: int
) -> list[Stage]:
    """Stages of a mixture whose shares go from `begin` to `end` as the schedule goes from 0 to 1.

    Weights count as shares of their sum, and a name that one of them leaves out has none there.

    Args:
      begin: weights by name where the schedule is 0.
      end: weights by name where it is 1.
      schedule: how far the shares have gone at a step, counted from 0.
      num_steps: steps of the run.
      every: steps of a stage; within it the shares stay.

    Raises:
      DataError: `every` is below one.
      ValueError: weights are negative, or all zero.
    """
    check_positive(every, name="every")
    first, last = _shares(begin), _shares(end)
    names = sorted({*first, *last})
    stages = []
    for step in range(0, num_steps, every):
        done = schedule(step)
        weights = {
            name: round((1 - done) * first.get(name, 0.0) + done * last.get(name, 0.0), _DECIMALS)
            for name in names
        }
        stages.append(Stage(begin=step, weights=weights))
    return stages


def _shares(weights: Weights) -> dict[str, float]:
    total = float(sum(weights.values()))
    if total <= 0 or min(weights.values()) < 0:
        raise ValueError(f"weights {dict(weights)} must not be negative, nor all be zero.")
    return {name: float(weight) / total for name, weight in weights.items()}
