"""Mixtures of streams with exact proportions, which may change in stages."""

import functools
import hashlib
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.batches import Batch, rows_by_group
from fidgpt.data.errors import DataError
from fidgpt.data.streams import BegunStage, IndexedStream
from fidgpt.data.tokenizers import Tokenizer
from fidgpt.ranges import require_not_negative, require_size
from fidgpt.schedule import Schedule

__all__ = ["Mixture", "Stage", "annealed"]


# Weights of up to five decimals that sum to 1 are exact. A table has one entry per position.
_MAX_PERIOD = 100_000
# Relative weights by name of the stream.
Weights = Mapping[str, float | int]


def exact_counts(weights: Weights) -> dict[str, int]:
    """Return the number of sequences of each stream in a period; the period is their sum.

    Weights are read as the decimal fractions they are written as: 0.7, 0.2 and 0.1 give 7, 2 and 1.
    If no period up to 100,000 is exact, the counts of that period are rounded by Hamilton's method
    (largest remainders).

    Raises:
      ValueError: a weight is negative, NaN or inf, or too small for one sequence; or all are zero.
    """
    fractions = {name: _fraction(weight, name=name) for name, weight in sorted(weights.items())}
    total = sum(fractions.values())
    if not total:
        shown = ", ".join(f"{name}={weight}" for name, weight in weights.items()) or "none"
        raise ValueError(f"The weights of a mixture are all zero ({shown}): set one above zero.")
    shares = {name: weight / total for name, weight in fractions.items()}
    period = math.lcm(*(share.denominator for share in shares.values()))
    counts = (
        _rounded(shares) if period > _MAX_PERIOD else {n: s * period for n, s in shares.items()}
    )
    lost = [name for name in counts if shares[name] and not counts[name]]
    if lost:
        raise ValueError(
            f"The weight {weights[lost[0]]} of {lost[0]!r} is less than one sequence in "
            f"{_MAX_PERIOD:,}: increase it, or remove it."
        )
    return {name: int(count) for name, count in counts.items()}


def _fraction(weight: float | int, *, name: str) -> Fraction:
    if not math.isfinite(weight) or weight < 0:
        raise ValueError(f"The weight {weight} of {name!r} must be 0 or more.")
    return Fraction(str(weight))


def _rounded(shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Return counts that sum to the longest period, each within one of its exact share."""
    counts = {name: math.floor(share * _MAX_PERIOD) for name, share in shares.items()}
    left = _MAX_PERIOD - sum(counts.values())
    by_remainder = sorted(shares, key=lambda name: counts[name] - shares[name] * _MAX_PERIOD)
    return {name: counts[name] + (name in by_remainder[:left]) for name in counts}


class Interleaving:
    """An order of streams with random access in which every prefix has the right proportions.

    Among the first n positions, the count of each stream differs from n times its share by less
    than one. One period is a table, computed by earliest-deadline-first scheduling of unit jobs,
    where each job's release time and deadline enforce that bound; it is feasible for any shares
    (Baruah, Cohen, Plaxton and Varvel, 1996, "Proportionate Progress: A Notion of Fairness in
    Resource Allocation").

    Args:
      counts: positions of each stream in a period; at least one is positive.
      length: number of positions; None for infinite.
    """

    def __init__(self, counts: Sequence[int], *, length: int | None = None) -> None:
        self.counts = np.array(counts, dtype=np.int64)
        self._period = sum(counts)
        size = self._period if length is None else min(length, self._period)
        self._sources, self._ranks = _table(tuple(counts), size)

    def __call__(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the stream of each position, and how many earlier positions that stream has."""
        periods, within = np.divmod(positions, self._period)
        sources = self._sources[within]
        return sources, periods * self.counts[sources] + self._ranks[within]

    def before(self, position: int) -> NDArray[np.int64]:
        """Return how many positions before this one each stream has."""
        periods, within = divmod(position, self._period)
        part = np.bincount(self._sources[:within], minlength=len(self.counts))
        return periods * self.counts + part


@functools.lru_cache(maxsize=16)
def _table(counts: tuple[int, ...], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the stream of each of the first positions, and its rank within that stream."""
    period = sum(counts)
    sources = np.empty(length, dtype=np.int64)
    ranks = np.empty(length, dtype=np.int64)
    waiting = [(0, number, 0) for number, count in enumerate(counts) if count]
    ready: list[tuple[int, int, int]] = []
    for position in range(length):
        while waiting and waiting[0][0] <= position:
            _, number, rank = heapq.heappop(waiting)
            deadline = -(-(rank + 1) * period // counts[number])
            heapq.heappush(ready, (deadline, number, rank))
        _, number, rank = heapq.heappop(ready)
        sources[position], ranks[position] = number, rank
        if rank + 1 < counts[number]:
            begin = (rank + 1) * period // counts[number]
            heapq.heappush(waiting, (begin, number, rank + 1))
    return sources, ranks


class Stage:
    """The weights of a mixture from a given step on.

    Args:
      begin: first step of the stage, counted from 0.
      weights: relative weight of each stream, by name.

    Raises:
      ValueError: `begin` is negative, or the weights are invalid.
    """

    def __init__(self, *, begin: int, weights: Weights) -> None:
        require_not_negative(begin=begin)
        self.begin = begin
        self.weights = weights
        self.counts = exact_counts(weights)


class Mixture(IndexedStream):
    """Sequences of several streams, interleaved in exact proportions.

    All sequences have the same length, so that weights of sequences are weights of tokens; padding
    counts as tokens of its stream. Among the first n sequences of a stage, the count of each stream
    differs from n times its share by less than one: see `Interleaving`. Weights are relative; those
    of up to five decimals that sum to 1 are exact, and `shares` returns what others are rounded to.
    Each stream continues across stages and epochs. Stages that a run has not reached may be changed
    when it is resumed.

    Args:
      streams: streams by name, which may themselves be mixtures.
      batch_size: sequences of a batch, over all ranks.
      weights: relative weight of each stream; 0 if missing.
      stages: new weights from later steps on, in order.

    Raises:
      ValueError: a weight names no stream or is negative, all are zero, or stages are out of order.
    """

    # On resume, the trainer checks that the data read so far would be the same.
    MAY_CHANGE: ClassVar[Mapping[str, str]] = {"stages": "restart"}

    def __init__(
        self,
        streams: Mapping[str, IndexedStream],
        *,
        batch_size: int,
        weights: Weights,
        stages: Sequence[Stage] = (),
    ) -> None:
        require_size(batch_size=batch_size)
        self.streams = dict(sorted(streams.items()))  # a saved config may have another order
        self.batch_size = batch_size
        self.weights = weights
        self.stages = [Stage(begin=0, weights=weights), *stages]
        _check_stages(self.stages, names=list(streams))
        self._start_of: Callable[[int], int] = lambda step: step * batch_size
        self._order = functools.cache(self._next_order)
        self._is_prepared = False

    def shares(self, step: int) -> dict[str, Fraction]:
        """Return the exact share of each stream at a step."""
        counts = self.stages[self._stage(np.array([self._start_of(step)]))[0]].counts
        return {name: Fraction(counts.get(name, 0), sum(counts.values())) for name in self.streams}

    def require_text(self) -> None:
        for stream in self.streams.values():
            stream.require_text()

    def prepare(self, *, show_progress: bool = True) -> None:
        """Prepare every stream.

        Raises:
          DataError: a text is missing (before any is prepared), or the streams differ in tokenizer.
        """
        if self._is_prepared:
            return
        self.require_text()
        for stream in self.streams.values():
            stream.prepare(show_progress=show_progress)
        _check_alike(self.streams)
        self._is_prepared = True

    def rows(self, indices: NDArray[np.int64]) -> Batch:
        """Return the sequences with these numbers: [len(indices), seq_len + 1] tokens."""
        sources, numbers = self.sources(indices)
        streams = list(self.streams.values())
        return rows_by_group(sources, lambda source, chosen: streams[source].rows(numbers[chosen]))

    def sources(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for each sequence, the index of its stream and its number within that stream."""
        if not self._is_prepared:
            raise DataError("The mixture is not prepared yet: call prepare() first.")
        sources, numbers = np.empty_like(indices), np.empty_like(indices)
        stages = self._stage(indices)
        for stage in np.unique(stages).tolist():
            order, before = self._order_of(stage)
            chosen = stages == stage
            source, rank = order(indices[chosen] - self._begins[stage])
            sources[chosen], numbers[chosen] = source, before[source] + rank
        return sources, numbers

    def curves(self, num_steps: int) -> dict[str, list[float]]:
        if len(self.stages) < 2:
            return {}
        begins = [stage.begin for stage in self.stages]
        stages = (np.searchsorted(begins, np.arange(num_steps), side="right") - 1).tolist()
        curves = {}
        for name in self.streams:
            shares = [s.counts.get(name, 0) / sum(s.counts.values()) for s in self.stages]
            curves[f"share of {name}"] = [shares[at] for at in stages]
        return curves

    def stages_within(self, count: int) -> list[BegunStage]:
        rows = zip(self.stages, self._begins.tolist(), strict=True)
        begun = [BegunStage(s.begin, first, s.counts) for s, first in rows if first < count]
        if begun:
            order, before = self._order_of(len(begun) - 1)
            num_read = before + order.before(count - begun[-1].sequence)
            for stream, number in zip(self.streams.values(), num_read.tolist(), strict=True):
                begun += stream.stages_within(number)
        return begun

    def with_batch_starts(self, start_of: Callable[[int], int]) -> "Mixture":
        mixture = Mixture(
            self.streams,
            batch_size=self.batch_size,
            weights=self.weights,
            stages=self.stages[1:],
        )
        mixture._start_of = start_of
        return mixture

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that all streams share."""
        return next(iter(self.streams.values())).tokenizer

    @property
    def checksum(self) -> str:
        """A hash of the texts and their names, in 64 hex digits, independent of the weights."""
        words = [f"{name} {stream.checksum}" for name, stream in self.streams.items()]
        return hashlib.sha256("\n".join(words).encode()).hexdigest()

    def _order_of(self, stage: int) -> tuple[Interleaving, NDArray[np.int64]]:
        """Return the order of a stage, and how many sequences of each stream precede it."""
        for earlier in range(stage):  # iteratively: each one depends on the previous one
            self._order(earlier)
        return self._order(stage)

    def _next_order(self, stage: int) -> tuple[Interleaving, NDArray[np.int64]]:
        lengths = np.diff(self._begins).tolist()
        before = np.zeros(len(self.streams), dtype=np.int64)
        if stage:
            order, before = self._order(stage - 1)
            before = before + order.before(lengths[stage - 1])
        counts = [self.stages[stage].counts.get(name, 0) for name in self.streams]
        return Interleaving(counts, length=[*lengths, None][stage]), before

    @functools.cached_property
    def _begins(self) -> NDArray[np.int64]:
        """The first sequence of each stage."""
        return np.array([self._start_of(stage.begin) for stage in self.stages], dtype=np.int64)

    def _stage(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._begins, indices, side="right") - 1


def _check_stages(stages: Sequence[Stage], *, names: Sequence[str]) -> None:
    """Raise ValueError if a weight names no stream, or stages are out of order."""
    for stage in stages:
        unknown = [name for name in stage.weights if name not in names]
        if unknown:
            raise ValueError(f"{unknown[0]!r} has a weight, but is none of {', '.join(names)}.")
    begins = [stage.begin for stage in stages[1:]]
    if begins != sorted(set(begins)):
        raise ValueError(f"The stages begin at steps {begins}: list them in order, each step once.")


def _check_alike(streams: Mapping[str, IndexedStream]) -> None:
    """Raise DataError unless all streams have the same tokens."""
    first, *_ = streams
    expected: Any = None
    for name, stream in streams.items():
        tokens = stream.tokenizer.token_values(), stream.tokenizer.end_of_text
        expected = expected or tokens
        if tokens != expected:
            raise DataError(
                f"The texts {first!r} and {name!r} of the mixture have different tokenizers: "
                f"{len(expected[0])} and {len(tokens[0])} tokens that differ.\n"
                "Use one TokenizerFile(path) for all, or CorpusTokenizer(corpus) of the first."
            )


_DECIMALS = 5  # weights with this many are exact


def annealed(
    *, begin: Weights, end: Weights, schedule: Schedule, num_steps: int, every: int
) -> list[Stage]:
    """Return mixture stages that interpolate between two sets of weights by a schedule.

    Args:
      begin: relative weights by name at schedule value 0; 0 if missing.
      end: relative weights by name at schedule value 1; 0 if missing.
      schedule: interpolation factor, from 0 to 1, at a step counted from 0.
      num_steps: steps of the run.
      every: steps per stage.

    Raises:
      ValueError: `every` is below 1, or weights are negative or all zero.
    """
    require_size(every=every)
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
        raise ValueError(f"weights {dict(weights)} must not be negative or all zero.")
    return {name: float(weight) / total for name, weight in weights.items()}
