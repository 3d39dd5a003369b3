"""Lengths of the cycles of a schedule, and of their phases."""

import itertools
import math
from collections.abc import Sequence

Length = int | float
"""A number of steps, or, as a float up to 1, a fraction."""


def in_steps(name: str, length: Length, *, of: int) -> int:
    """Return a length in steps; a fraction above 0 is at least one step.

    Args:
      name: of the length, for the error message.
      length: steps, or a fraction of `of`.
      of: steps that a fraction refers to.

    Raises:
      ValueError: it is negative, or neither a fraction nor a whole number.
    """
    if not 0 <= length < math.inf or (length > 1 and length != int(length)):
        raise ValueError(f"{name}={length} is neither a fraction from 0 to 1 nor a count of steps.")
    if isinstance(length, int) or length > 1:
        return int(length)
    # Rounded up slightly, because 0.29 * 100 is 28.999999999999996.
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
      cycle_length: the length of each cycle in steps or as a fraction of the run, or a list of all
        lengths. The remainder extends the last cycle; after a list, it is one more cycle.

    Raises:
      ValueError: both are set, or the cycles do not fit into the run.
    """
    if num_steps < 1:
        raise ValueError(f"{num_steps=} must be at least 1.")
    if cycles is not None and cycle_length is not None:
        raise ValueError(f"{cycles=} and {cycle_length=} cannot both be set: remove one.")
    if cycle_length is not None:
        return _by_length(cycle_length, num_steps)
    if not isinstance(cycles, Sequence):
        count = 1 if cycles is None else cycles
        if not 1 <= count <= num_steps:
            raise ValueError(f"{cycles=} do not fit into {num_steps=}: from 1 to one a step.")
        return [num_steps * number // count for number in range(1, count + 1)]
    ends = [*cycles] if cycles and cycles[-1] == num_steps else [*cycles, num_steps]
    if any(end <= begin for begin, end in itertools.pairwise([0, *ends])):
        raise ValueError(
            f"{cycles=} must be steps at which cycles end, one after the other and up to "
            f"{num_steps=}."
        )
    return ends


def _by_length(cycle_length: Length | Sequence[int], num_steps: int) -> list[int]:
    if isinstance(cycle_length, Sequence):
        if min(cycle_length, default=1) < 1 or sum(cycle_length) > num_steps:
            total = sum(cycle_length)
            raise ValueError(
                f"{cycle_length=} must be lengths of 1 or more steps; they take {total} of "
                f"{num_steps=}."
            )
        ends = [*itertools.accumulate(cycle_length)]
        return ends if ends and ends[-1] == num_steps else [*ends, num_steps]
    length = in_steps("cycle_length", cycle_length, of=num_steps)
    if not 1 <= length <= num_steps:
        raise ValueError(f"{cycle_length=} is {length} steps, which do not fit into {num_steps=}.")
    return [length * number for number in range(1, num_steps // length)] + [num_steps]
