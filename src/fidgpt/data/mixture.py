"""Mixtures of streams by exact shares, which may change in stages."""

import functools
import hashlib
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.errors import DataError
from fidgpt.data.streams import BegunStage, Curve, IndexedStream
from fidgpt.data.tokenizers import Tokenizer
from fidgpt.ranges import require_size
from fidgpt.schedule import Schedule

__all__ = ["Mixture", "Stage", "annealed"]


# Weights of up to five decimals that add up to 1 are exact; the table has one entry for each.
_MAX_PERIOD = 100_000
# Relative shares by name.
Weights = Mapping[str, float | int]


def exact_counts(weights: Weights) -> dict[str, int]:
    """Return the number of sequences of each source in a period; the period is their sum.

    Weights are decimal fractions as written, so that 0.7, 0.2 and 0.1 give 7, 2 and 1. If no
    period up to 100,000 is exact, the counts of that period are rounded (Hamilton's method).

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
    """Return counts that add up to the longest period, each less than one off its share."""
    counts = {name: math.floor(share * _MAX_PERIOD) for name, share in shares.items()}
    left = _MAX_PERIOD - sum(counts.values())
    by_remainder = sorted(shares, key=lambda name: counts[name] - shares[name] * _MAX_PERIOD)
    return {name: counts[name] + (name in by_remainder[:left]) for name in counts}


class Interleaving:
    """An order of sources with random access in which every prefix has exact shares.

    Of the first n positions, each source has n times its share, less than one more or less. One
    period is a table: unit jobs, each with the positions between which it keeps that bound, the
    earliest deadline first, which is possible for any shares (Baruah, Cohen, Plaxton and Varvel,
    1996, "Proportionate Progress: A Notion of Fairness in Resource Allocation").

    Args:
      counts: positions of each source in a period; at least one is above zero.
      length: number of positions; None means endless.
    """

    def __init__(self, counts: Sequence[int], *, length: int | None = None) -> None:
        self.counts = np.array(counts, dtype=np.int64)
        self._period = sum(counts)
        size = self._period if length is None else min(length, self._period)
        self._sources, self._ranks = _table(tuple(counts), size)

    def __call__(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source of each position, and how many positions it has before."""
        periods, within = np.divmod(positions, self._period)
        sources = self._sources[within]
        return sources, periods * self.counts[sources] + self._ranks[within]

    def before(self, position: int) -> NDArray[np.int64]:
        """Return how many of the positions before this one each source has."""
        periods, within = divmod(position, self._period)
        part = np.bincount(self._sources[:within], minlength=len(self.counts))
        return periods * self.counts + part


@functools.lru_cache(maxsize=16)
def _table(counts: tuple[int, ...], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the source of each of the first positions, and the rank among the source's own."""
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
    """Weights of a mixture from a step on.

    Args:
      begin: first step of the stage, counted from 0.
      weights: relative share of each stream, by name.

    Raises:
      ValueError: `begin` is negative, or the weights are invalid.
    """

    def __init__(self, *, begin: int, weights: Weights) -> None:
        if begin < 0:
            raise ValueError(f"{begin=} must be a step of the run, 0 or later.")
        self.begin = begin
        self.weights = weights
        self.counts = exact_counts(weights)


class Mixture(IndexedStream):
    """Sequences of several streams, interleaved by exact shares, each stream in its own order.

    All sequences have the same length, so weights of sequences are weights of tokens; padding
    counts as tokens of its stream. Of the first n sequences of a stage each stream has n times its
    share, less than one more or less: see `Interleaving`. Weights are relative; those of up to five
    decimals that add up to 1 are exact, and `shares` returns what the others are rounded to. Each
    stream continues from stage to stage, and from epoch to epoch. Stages that a run has not begun
    may be changed when it is resumed.

    Args:
      streams: by name, in any order; they may be mixtures.
      batch_size: sequences of a batch, over all ranks.
      weights: relative share of each stream, 0 if missing.
      stages: other weights from later steps on.

    Raises:
      ValueError: a weight names no stream or is negative, all are zero, or stages are out of order.
    """

    # The trainer compares what was read so far when a run is resumed.
    MAY_CHANGE: ClassVar[Mapping[str, str]] = {"stages": "restart"}

    def __init__(
        self,
        streams: Mapping[str, IndexedStream],
        *,
        batch_size: int,
        weights: Weights,
        stages: Sequence[Stage] = (),
    ) -> None:
        require_size("batch_size", batch_size)
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
          DataError: a text is missing (before any is prepared), or the streams differ in tokenizer
            or sequence length.
        """
        if self._is_prepared:
            return
        self.require_text()
        for stream in self.streams.values():
            stream.prepare(show_progress=show_progress)
        _check_alike(self.streams)
        self._is_prepared = True

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sequences with these numbers, each from its stream."""
        sources, numbers = self.sources(indices)
        rows = np.empty((len(indices), 0), dtype=np.int64)
        for source, stream in enumerate(self.streams.values()):
            chosen = sources == source
            if chosen.any():
                found = stream.rows(numbers[chosen])
                if not rows.size:
                    rows = np.empty((len(indices), found.shape[1]), dtype=np.int64)
                rows[chosen] = found
        return rows

    def sources(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the index of the stream of each sequence, and the number of the sequence in it."""
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

    def curves(self, num_steps: int) -> list[Curve]:
        if len(self.stages) < 2:
            return []
        begins = [stage.begin for stage in self.stages]
        stages = (np.searchsorted(begins, np.arange(num_steps), side="right") - 1).tolist()
        curves = []
        for name in self.streams:
            shares = [one.counts.get(name, 0) / sum(one.counts.values()) for one in self.stages]
            curves.append(Curve(f"share of {name}", "share", [shares[at] for at in stages], 1.0))
        return curves

    def stages_within(self, count: int) -> list[BegunStage]:
        rows = zip(self.stages, self._begins.tolist(), strict=True)
        met = [BegunStage(one.begin, at, one.counts) for one, at in rows if at < count]
        if met:
            order, before = self._order_of(len(met) - 1)
            read = before + order.before(count - met[-1].sequence)
            for stream, own in zip(self.streams.values(), read.tolist(), strict=True):
                met += stream.stages_within(own)
        return met

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
        """A hash of the texts and their names, in 64 hex digits, whatever the weights are."""
        words = [f"{name} {stream.checksum}" for name, stream in self.streams.items()]
        return hashlib.sha256("\n".join(words).encode()).hexdigest()

    def _order_of(self, stage: int) -> tuple[Interleaving, NDArray[np.int64]]:
        """Return a stage's order, and how many sequences of each stream come before the stage."""
        for earlier in range(stage):  # in turn, as each is found from the one before it
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
            raise ValueError(
                f"The weight of {unknown[0]!r} belongs to no stream: there are {', '.join(names)}."
            )
    begins = [stage.begin for stage in stages[1:]]
    if begins != sorted(set(begins)):
        raise ValueError(f"The stages begin at steps {begins}: list them in order, each step once.")


def _check_alike(streams: Mapping[str, IndexedStream]) -> None:
    """Raise DataError unless all streams have the same tokens and sequences of the same length."""
    first, *_ = streams
    expected: tuple[Any, ...] = ()
    for name, stream in streams.items():
        tokens = stream.tokenizer.token_values(), stream.tokenizer.end_of_text
        seq_len = stream.rows(np.zeros(1, dtype=np.int64)).shape[1] - 1
        expected = expected or (tokens, seq_len)
        if tokens != expected[0]:
            raise DataError(
                f"The texts {first!r} and {name!r} of the mixture have different tokenizers: "
                f"{len(expected[0][0])} and {len(tokens[0])} tokens that differ.\n"
                "Use one TokenizerFile(path) for all, or CorpusTokenizer(corpus) of the first."
            )
        if seq_len != expected[1]:
            raise DataError(
                f"The texts {first!r} and {name!r} of the mixture have sequences of {expected[1]} "
                f"and {seq_len} tokens.\nSet the same seq_len for both."
            )


_DECIMALS = 5  # that a mixture represents exactly


def annealed(
    *, begin: Weights, end: Weights, schedule: Schedule, num_steps: int, every: int
) -> list[Stage]:
    """Return stages of a mixture that interpolate its shares as the schedule goes from 0 to 1.

    Args:
      begin: relative weights by name where the schedule is 0; 0 if missing.
      end: relative weights by name where the schedule is 1; 0 if missing.
      schedule: position between `begin` and `end` at a step, counted from 0.
      num_steps: steps of the run.
      every: steps of a stage, within which the shares are constant.

    Raises:
      DataError: `every` is below 1.
      ValueError: weights are negative, or all zero.
    """
    require_size("every", every)
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
