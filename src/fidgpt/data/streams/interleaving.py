"""Several sources in exact shares: which of them a place of the order belongs to."""

import functools
import heapq
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

# Weights of up to five decimals that add up to 1 are exact; the table has a place for each.
_MAX_PERIOD = 100_000
# Shares by name, in any unit.
Weights = Mapping[str, float | int]


def exact_counts(weights: Weights) -> dict[str, int]:
    """How many places of a period each source has; the period is their sum.

    Weights are taken as they are written, so that 0.7, 0.2 and 0.1 give 7, 2 and 1. Where no
    period up to 100,000 does, the counts of that period are rounded (Hamilton's method).

    Raises:
      ValueError: a weight is negative, no number, or too small for any place; or all are zero.
    """
    asked = {name: _fraction(weight, name=name) for name, weight in sorted(weights.items())}
    total = sum(asked.values())
    if not total:
        said = ", ".join(f"{name}={weight}" for name, weight in weights.items()) or "none"
        raise ValueError(f"The weights of a mixture are all zero ({said}): give one a share.")
    shares = {name: weight / total for name, weight in asked.items()}
    period = math.lcm(*(share.denominator for share in shares.values()))
    counts = (
        _rounded(shares) if period > _MAX_PERIOD else {n: s * period for n, s in shares.items()}
    )
    lost = [name for name in counts if shares[name] and not counts[name]]
    if lost:
        raise ValueError(
            f"The weight {weights[lost[0]]} of {lost[0]!r} is less than one sequence in "
            f"{_MAX_PERIOD:,}: give it more, or leave it out."
        )
    return {name: int(count) for name, count in counts.items()}


def _fraction(weight: float | int, *, name: str) -> Fraction:
    if not math.isfinite(weight) or weight < 0:
        raise ValueError(f"The weight {weight} of {name!r} must be 0 or more.")
    return Fraction(str(weight))


def _rounded(shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Counts that add up to the longest period, each less than one from its share of it."""
    counts = {name: math.floor(share * _MAX_PERIOD) for name, share in shares.items()}
    left = _MAX_PERIOD - sum(counts.values())
    by_remainder = sorted(shares, key=lambda name: counts[name] - shares[name] * _MAX_PERIOD)
    return {name: counts[name] + (name in by_remainder[:left]) for name in counts}


class Interleaving:
    """Places 0, 1, 2, ... dealt to sources: any is found at once, and no prefix is out of balance.

    Of the first n places, each source has n times its share, less than one more or less. One
    period is a table: unit jobs, each with the places between which it keeps that bound, the
    earliest deadline first, which is possible for any shares (Baruah, Cohen, Plaxton and Varvel,
    1996, "Proportionate Progress: A Notion of Fairness in Resource Allocation").

    Args:
      counts: places of each source in a period; one is above zero.
      num_places: that are asked for; without end unless said.
    """

    def __init__(self, counts: Sequence[int], *, num_places: int | None = None) -> None:
        self.counts = np.array(counts, dtype=np.int64)
        self._period = sum(counts)
        length = self._period if num_places is None else min(num_places, self._period)
        self._sources, self._ranks = _table(tuple(counts), length)

    def __call__(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of the source that has each place, and how many it had before."""
        periods, within = np.divmod(places, self._period)
        sources = self._sources[within]
        return sources, periods * self.counts[sources] + self._ranks[within]

    def before(self, place: int) -> NDArray[np.int64]:
        """How many of the places before this one each source has."""
        periods, within = divmod(place, self._period)
        part = np.bincount(self._sources[:within], minlength=len(self.counts))
        return periods * self.counts + part


@functools.lru_cache(maxsize=16)
def _table(counts: tuple[int, ...], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The source of each of the first places, and the rank among that source's places."""
    period = sum(counts)
    sources = np.empty(length, dtype=np.int64)
    ranks = np.empty(length, dtype=np.int64)
    waiting = [(0, number, 0) for number, count in enumerate(counts) if count]
    ready: list[tuple[int, int, int]] = []
    for place in range(length):
        while waiting and waiting[0][0] <= place:
            _, number, rank = heapq.heappop(waiting)
            deadline = -(-(rank + 1) * period // counts[number])
            heapq.heappush(ready, (deadline, number, rank))
        _, number, rank = heapq.heappop(ready)
        sources[place], ranks[place] = number, rank
        if rank + 1 < counts[number]:
            begin = (rank + 1) * period // counts[number]
            heapq.heappush(waiting, (begin, number, rank + 1))
    return sources, ranks
