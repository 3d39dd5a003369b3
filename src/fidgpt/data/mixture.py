"""Mixtures of streams."""

import functools
import hashlib
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.errors import DataError
from fidgpt.data.order import check_positive
from fidgpt.data.streams import BegunStage, Curve, IndexedStream
from fidgpt.data.tokenizers import Tokenizer
from fidgpt.schedule import Schedule

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


class Stage:
    """From a step on, a mixture has other weights.

    Args:
      begin: the first step of the stage, counted from 0.
      weights: of the streams, as those of the mixture.

    Raises:
      ValueError: `begin` is negative, or the weights are none.
    """

    def __init__(self, *, begin: int, weights: Weights) -> None:
        self.check_arguments(begin=begin, weights=weights)
        self.begin = begin
        self.weights = weights

    @staticmethod
    def check_arguments(*, begin: int, weights: Weights) -> None:
        """Raises ValueError where there is no such step, or nothing to draw."""
        if begin < 0:
            raise ValueError(f"{begin=} must be a step of the run, 0 or later.")
        exact_counts(weights)


class Mixture(IndexedStream):
    """Sequences of several streams, each stream in its own order, dealt out by exact shares.

    All sequences have equally many tokens, so weights of sequences are weights of tokens; what a
    packing leaves empty counts as its text's. Of the first n sequences of a stage each stream has
    n times its share, less than one more or less: see `Interleaving`. Weights are relative; those
    of up to five decimals that add up to 1 are exact, and `shares` says what the others become.
    Where a stage ends, each stream goes on in the next one with the sequence after its last. A
    stream that ends begins its next epoch. Stages that a run has not begun may be others when it
    goes on.

    Args:
      streams: by name, in whatever order; a mixture may be one of them.
      batch_size: sequences of a batch, over all ranks.
      weights: of each stream; one that is not named has none.
      stages: other weights from later steps on.

    Raises:
      ValueError: a weight names no stream, is negative, or all are zero; stages out of order.
    """

    # What was read so far is compared when a run goes on.
    MAY_CHANGE: ClassVar[Mapping[str, str]] = {"stages": "restart"}

    def __init__(
        self,
        streams: Mapping[str, IndexedStream],
        *,
        batch_size: int,
        weights: Weights,
        stages: Sequence[Stage] = (),
    ) -> None:
        self.check_arguments(batch_size=batch_size, weights=weights)
        self.streams = dict(sorted(streams.items()))  # a config that was saved may sort them
        self.batch_size = batch_size
        self.weights = weights
        self.stages = [Stage(begin=0, weights=weights), *stages]
        _check_stages(self.stages, names=list(streams))
        self._before: Callable[[int], int] = lambda step: step * batch_size
        self._counts = [exact_counts(stage.weights) for stage in self.stages]
        self._dealt: list[_Dealt] = []

    @staticmethod
    def check_arguments(*, batch_size: int, weights: Weights) -> None:
        """Raises ValueError where there is nothing to draw from."""
        check_positive(batch_size, name="batch_size")
        exact_counts(weights)

    def shares(self, step: int) -> dict[str, Fraction]:
        """The share of each stream that the batch of a step is drawn by, exactly."""
        counts = self._counts[self._stage(np.array([self._before(step)]))[0]]
        return {name: Fraction(counts.get(name, 0), sum(counts.values())) for name in self.streams}

    def require_text(self) -> None:
        for stream in self.streams.values():
            stream.require_text()

    def prepare(self, *, show_progress: bool = True) -> None:
        """Prepare every stream; again, it costs nothing.

        Raises DataError, also when their tokens are not those of one tokenizer, or their
        sequences not of one length; where a text is not there, before any is written.
        """
        if self._dealt:
            return
        self.require_text()
        for stream in self.streams.values():
            stream.prepare(show_progress=show_progress)
        _check_same_tokens({name: stream.tokenizer for name, stream in self.streams.items()})
        _check_same_length(self.streams)
        self._dealt_to(0)

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sequences with these numbers, of whichever stream each one is."""
        sources, numbers = self.sources(indices)
        found: list[tuple[NDArray[np.bool_], NDArray[np.int64]]] = []
        for source, stream in enumerate(self.streams.values()):
            chosen = sources == source
            if chosen.any():
                found.append((chosen, stream.rows(numbers[chosen])))
        rows = np.empty((len(indices), found[0][1].shape[1]), dtype=np.int64)
        for chosen, read in found:
            rows[chosen] = read
        return rows

    def sources(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The stream that each sequence is of, counted from 0, and its number in that stream."""
        if not self._dealt:
            raise DataError("The mixture is not prepared yet: call prepare() first.")
        sources, numbers = np.empty_like(indices), np.empty_like(indices)
        stages = self._stage(indices)
        dealt = self._dealt_to(int(stages.max(initial=0)))
        for stage in np.unique(stages).tolist():
            chosen = stages == stage
            source, rank = dealt[stage].order(indices[chosen] - self._begins[stage])
            sources[chosen], numbers[chosen] = source, dealt[stage].before[source] + rank
        return sources, numbers

    def curves(self, num_steps: int) -> list[Curve]:
        if len(self.stages) < 2:
            return []
        begins = [stage.begin for stage in self.stages]
        stages = (np.searchsorted(begins, np.arange(num_steps), side="right") - 1).tolist()
        shares = [
            {name: count / sum(counts.values()) for name, count in counts.items()}
            for counts in self._counts
        ]
        return [
            Curve(f"share of {name}", "share", [shares[at].get(name, 0.0) for at in stages], 1.0)
            for name in self.streams
        ]

    def begun(self, count: int) -> list[BegunStage]:
        rows = zip(self.stages, self._begins.tolist(), self._counts, strict=True)
        met = [BegunStage(one.begin, at, counts) for one, at, counts in rows if at < count]
        if met:
            last = self._dealt_to(len(met) - 1)[len(met) - 1]
            many = last.before + last.order.before(count - met[-1].sequence)
            for stream, own in zip(self.streams.values(), many.tolist(), strict=True):
                met += stream.begun(own)
        return met

    def in_steps(self, before: Callable[[int], int]) -> "Mixture":
        mixture = Mixture(
            self.streams,
            batch_size=self.batch_size,
            weights=self.weights,
            stages=self.stages[1:],
        )
        mixture._before = before
        return mixture

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that all streams share."""
        return next(iter(self.streams.values())).tokenizer

    @property
    def checksum(self) -> str:
        """A hash of the texts and their names, as 64 hexadecimal digits; see `stages_begun` too."""
        words = [f"{name} {stream.checksum}" for name, stream in self.streams.items()]
        return hashlib.sha256("\n".join(words).encode()).hexdigest()

    def _dealt_to(self, stage: int) -> "list[_Dealt]":
        """What is known of all stages up to one; a run meets them one after the other."""
        dealt = self._dealt  # threads that make batches ahead may replace it meanwhile
        if len(dealt) <= stage:
            dealt = [*dealt]
            while len(dealt) <= stage:
                dealt.append(self._next(dealt))
            self._dealt = dealt
        return dealt

    def _next(self, dealt: "Sequence[_Dealt]") -> "_Dealt":
        """The stage after those that are known."""
        number, lengths = len(dealt), np.diff(self._begins).tolist()
        before = np.zeros(len(self.streams), dtype=np.int64)
        if dealt:
            before = dealt[-1].before + dealt[-1].order.before(lengths[number - 1])
        counts = [self._counts[number].get(name, 0) for name in self.streams]
        length = lengths[number] if number < len(lengths) else None
        return _Dealt(Interleaving(counts, num_places=length), before)

    @functools.cached_property
    def _begins(self) -> NDArray[np.int64]:
        """The first sequence of each stage."""
        return np.array([self._before(stage.begin) for stage in self.stages], dtype=np.int64)

    def _stage(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._begins, indices, side="right") - 1


class _Dealt(NamedTuple):
    """The order of a stage, and how many sequences of each stream come before it."""

    order: Interleaving
    before: NDArray[np.int64]


def _check_stages(stages: Sequence[Stage], *, names: Sequence[str]) -> None:
    """Raises ValueError where weights name what is not there, or a stage precedes another."""
    for stage in stages:
        unknown = [name for name in stage.weights if name not in names]
        if unknown:
            raise ValueError(
                f"The weight of {unknown[0]!r} is that of no stream: there are {', '.join(names)}."
            )
    begins = [stage.begin for stage in stages[1:]]
    if begins != sorted(set(begins)):
        raise ValueError(f"The stages begin at steps {begins}: name them in order, each step once.")


def _check_same_tokens(tokenizers: Mapping[str, Tokenizer]) -> None:
    """Raises DataError unless one number is the same token in all texts."""
    (first, expected), *others = tokenizers.items()
    for name, tokenizer in others:
        same = tokenizer.end_of_text == expected.end_of_text
        if not same or tokenizer.token_values() != expected.token_values():
            raise DataError(
                f"The texts {first!r} and {name!r} of the mixture have different tokenizers: "
                f"{expected.vocab_size} and {tokenizer.vocab_size} tokens, not the same ones.\n"
                "Give all of them one TokenizerFile(path), or CorpusTokenizer(corpus) of the first."
            )


def _check_same_length(streams: Mapping[str, IndexedStream]) -> None:
    """Raises DataError unless all sequences have equally many tokens."""
    lengths = {
        name: s.rows(np.zeros(1, dtype=np.int64)).shape[1] - 1 for name, s in streams.items()
    }
    (first, expected), *others = lengths.items()
    for name, length in others:
        if length != expected:
            raise DataError(
                f"The texts {first!r} and {name!r} of the mixture have sequences of {expected} and "
                f"{length} tokens.\nGive both the same seq_len."
            )


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
