"""Several texts in exact shares, which may be others later in the run."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.errors import DataError
from fidgpt.data.streams.interleaving import Interleaving, Weights, exact_counts
from fidgpt.data.streams.streams import BegunStage, Curve, IndexedStream
from fidgpt.data.streams.windows import check_positive
from fidgpt.data.tokenizers.tokenizer import Tokenizer


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
