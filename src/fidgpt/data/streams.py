"""Streams of batches: the interfaces, and the streams over the splits of a corpus."""

import abc
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Real
from numpy.typing import NDArray
from torch import Tensor

from fidgpt.data.batches import Batch, rows_by_group
from fidgpt.data.errors import DataError
from fidgpt.data.order import derive_key, permute
from fidgpt.data.packing import Packing, Sequences, Windows, concatenate
from fidgpt.data.prepared import PreparedCorpus
from fidgpt.data.tokenizers import Tokenizer
from fidgpt.data.transforms import Transform
from fidgpt.ranges import require_size

__all__ = [
    "BegunStage",
    "EvaluationStream",
    "HeldOut",
    "IndexedStream",
    "StreamWrapper",
    "TokenStream",
    "TrainingStream",
]


Opened = TypeVar("Opened")


@runtime_checkable
class CorpusPart(Protocol):
    """A `Corpus` or a `CorpusDirectory`, which a stream reads."""

    def prepare(self, *, show_progress: bool = True) -> PreparedCorpus:
        """Prepare and open the corpus; later calls return the same object."""
        ...


class BegunStage(NamedTuple):
    """A stage of a mixture that a run has reached; a resumed run must not change it.

    Attributes:
      begin: first step of the stage.
      sequence: number of its first sequence in the mixture.
      counts: number of sequences of each stream in a period.
    """

    begin: int
    sequence: int
    counts: dict[str, int]

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        return f"step {self.begin} ({shares})"


class TrainingStream(abc.ABC):
    """Training batches as a pure function of the step; call `prepare` first."""

    @abc.abstractmethod
    def prepare(self, *, show_progress: bool = True) -> None:
        """Prepare the text; later calls cost nothing."""

    @abc.abstractmethod
    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return one rank's rows of the batch of a step, each of seq_len + 1 tokens."""

    def full_batches(self, steps: int) -> float:
        """Return the number of sequences in the first `steps` steps, in units of full batches."""
        return float(steps)

    def growth(self, step: int) -> tuple[float, float]:
        """Return the sequences of a step and their length, as shares of full ones."""
        return 1.0, 1.0

    def stages_begun(self, steps: int) -> list[BegunStage]:
        """Return the stages of mixtures that begin within the first `steps` steps."""
        return []

    def curves(self, num_steps: int) -> dict[str, list[float]]:
        """Return what schedules and stages change, a value for each step; texts may be missing."""
        return {}

    @property
    @abc.abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the text."""

    @property
    @abc.abstractmethod
    def checksum(self) -> str:
        """A hash of all tokens, which a resumed run compares."""


@runtime_checkable
class StreamWrapper(Protocol):
    """Makes a stream that changes the batches of another one."""

    def __call__(self, stream: TrainingStream, /) -> TrainingStream: ...


class WrappedStream(TrainingStream):
    """Base class of streams that transform the batches of another stream.

    Args:
      stream: the stream to read.
    """

    def __init__(self, stream: TrainingStream) -> None:
        self.stream = stream

    def prepare(self, *, show_progress: bool = True) -> None:
        self.stream.prepare(show_progress=show_progress)

    def full_batches(self, steps: int) -> float:
        return self.stream.full_batches(steps)

    def growth(self, step: int) -> tuple[float, float]:
        return self.stream.growth(step)

    def stages_begun(self, steps: int) -> list[BegunStage]:
        return self.stream.stages_begun(steps)

    def curves(self, num_steps: int) -> dict[str, list[float]]:
        return self.stream.curves(num_steps)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.stream.tokenizer

    @property
    def checksum(self) -> str:
        return self.stream.checksum


class IndexedStream(TrainingStream):
    """An infinite stream of numbered sequences, cut into batches.

    Attributes:
      batch_size: sequences of a batch, over all ranks.
    """

    batch_size: int

    @abc.abstractmethod
    def rows(self, indices: NDArray[np.int64]) -> Batch:
        """Return the sequences with these numbers: [len(indices), seq_len + 1] tokens."""

    def require_text(self) -> None:
        """Raise DataError early if the text is missing; cheap."""

    def stages_within(self, count: int) -> list[BegunStage]:
        """Return the stages that begin within the first `count` sequences."""
        return []

    def with_batch_starts(self, start_of: Callable[[int], int]) -> "IndexedStream":
        """Return a copy for batches of other sizes: step n begins at sequence `start_of(n)`."""
        return self

    def stages_begun(self, steps: int) -> list[BegunStage]:
        return self.stages_within(steps * self.batch_size)

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return one rank's rows of a batch: [batch_size / world_size, seq_len + 1] tokens.

        The ranks' rows, concatenated, do not depend on the number of ranks; some have one more.

        Raises:
          DataError: there are fewer rows than ranks.
        """
        return self.batch_from(
            step * self.batch_size, size=self.batch_size, rank=rank, world_size=world_size
        )

    def batch_from(self, first: int, *, size: int, rank: int, world_size: int) -> Batch:
        """Return one rank's rows of the batch of `size` sequences from `first` on.

        Raises:
          DataError: there are fewer rows than ranks.
        """
        if size < world_size:
            raise DataError(
                f"A batch of {size} sequences has too few for {world_size} processes.\nStart "
                "fewer, or set a larger batch_size (multiple_of, if batches grow)."
            )
        rows = rows_of_rank(size, rank=rank, world_size=world_size)
        return self.rows(first + np.array(rows, dtype=np.int64))


class EvaluationStream(abc.ABC):
    """Fixed evaluation batches; call `prepare` first."""

    @abc.abstractmethod
    def prepare(self, *, show_progress: bool = True) -> None:
        """Prepare the text; later calls cost nothing."""

    @abc.abstractmethod
    def batch(self, number: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return one rank's rows of batch `number`, each of seq_len + 1 tokens."""

    @property
    @abc.abstractmethod
    def num_batches(self) -> int:
        """Number of batches."""

    @property
    @abc.abstractmethod
    def token_bytes(self) -> Real[Tensor, " vocab"]:
        """The number of UTF-8 bytes of each token."""


@dataclass(eq=False)
class TokenStream(IndexedStream):
    """Infinite batches of the training split: each sequence once per epoch, in a new random order.

    The order is a keyed permutation of the sequence numbers, different in every epoch, so that any
    step is read in constant time and there is no state to save.

    Args:
      corpus: the text.
      seq_len: input tokens of a sequence, which holds one more.
      batch_size: sequences of a batch, over all ranks.
      seed: seed of the order, of the packing and of the transforms.
      packing: how documents become sequences.
      transforms: applied to the sequences in order.

    Raises:
      ValueError: a size is below 1.
    """

    corpus: CorpusPart
    _: KW_ONLY
    seq_len: int
    batch_size: int
    seed: int
    packing: Packing = concatenate
    transforms: Sequence[Transform] = ()

    def __post_init__(self) -> None:
        require_size(seq_len=self.seq_len, batch_size=self.batch_size)
        self._packed: tuple[PreparedCorpus, Sequences] | None = None

    def require_text(self) -> None:
        require_source = getattr(self.corpus, "require_source", None)
        if require_source is not None:
            require_source()

    def prepare(self, *, show_progress: bool = True) -> None:
        """Prepare the corpus if it is missing, open it and pack it.

        Raises:
          DataError: the corpus cannot be prepared, or is shorter than one sequence.
        """
        if self._packed is None:
            prepared = self.corpus.prepare(show_progress=show_progress)
            if show_progress:
                _report_documents(prepared)
            for transform in self.transforms:
                transform.check(prepared.tokenizer)
            sequences = self.packing(prepared, seq_len=self.seq_len, seed=self.seed)
            self._packed = prepared, sequences
            if show_progress and sequences.num_sequences < self.batch_size:
                there, read = prepared.train.num_tokens, self.batch_size * self.seq_len
                print(
                    f"warning: the text has {there:,} tokens to train on, and a step reads "
                    f"{read:,}: it repeats them.",
                    file=sys.stderr,
                )

    def rows(self, indices: NDArray[np.int64]) -> Batch:
        """Return the sequences with these numbers, which count across epochs."""
        prepared, sequences = require_prepared(self._packed)
        epochs, positions = np.divmod(indices, sequences.num_sequences)

        def read(epoch: int, chosen: NDArray[np.bool_]) -> Batch:
            key = derive_key(self.seed, "data", epoch)
            numbers = permute(
                positions[chosen].astype(np.uint64), size=sequences.num_sequences, key=key
            )
            return sequences.read(numbers.astype(np.int64), epoch=epoch)

        rows = rows_by_group(epochs, read)
        for transform in self.transforms:
            rows = transform(rows, indices=indices, seed=self.seed, tokenizer=prepared.tokenizer)
        return rows

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the training split."""
        return require_prepared(self._packed)[0].train.num_tokens

    @property
    def num_sequences(self) -> int:
        """The number of sequences in an epoch."""
        return require_prepared(self._packed)[1].num_sequences

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer with which the corpus was prepared."""
        return require_prepared(self._packed)[0].tokenizer

    @property
    def checksum(self) -> str:
        """A hash of the prepared corpus, its packing and the transforms, in 64 hex digits."""
        packed = require_prepared(self._packed)[1].checksum
        words = [packed, *(transform.identity() for transform in self.transforms)]
        return hashlib.sha256("\n".join(words).encode()).hexdigest() if words[1:] else packed


def _report_documents(prepared: PreparedCorpus) -> None:
    """Print which share of the tokens counts, and how many documents were changed, if any are."""
    splits = (prepared.train, prepared.validation)
    tokens, counted = (sum(map(attrgetter(name), splits)) for name in ("num_tokens", "num_counted"))
    events = sum((Counter(split.events) for split in splits), Counter[str]())
    if counted < tokens or events:
        documents = sum(split.num_documents for split in splits)
        parts = [f"{documents:,} documents of {tokens:,} tokens"]
        parts += [f"{counted / tokens:.1%} of the tokens count in the loss"] if tokens else []
        parts += [f"{count:,} {event}" for event, count in sorted(events.items())]
        print(f"text: {'; '.join(parts)}.", file=sys.stderr)


class HeldOut(EvaluationStream):
    """Batches of the validation split, the same ones in the same order on every pass.

    If not all sequences are used, those used are spaced evenly over the split. The last batch may
    be smaller than the others, with fewer rows on some ranks, or none.

    Args:
      corpus: the text.
      seq_len: input tokens of a sequence, which holds one more.
      batch_size: sequences of a batch, over all ranks.
      num_batches: maximum number of batches; None for the whole split.
      packing: how documents become sequences; None for windows over all of them.

    Raises:
      ValueError: a count is below 1.
    """

    def __init__(
        self,
        corpus: CorpusPart,
        *,
        seq_len: int,
        batch_size: int,
        num_batches: int | None = None,
        packing: Packing | None = None,
    ) -> None:
        require_size(seq_len=seq_len, batch_size=batch_size, num_batches=num_batches)
        self.corpus = corpus
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.max_batches = num_batches
        self.packing = packing
        self._prepared: tuple[PreparedCorpus, Sequences] | None = None

    def prepare(self, *, show_progress: bool = True) -> None:
        """Prepare the corpus if it is missing, and open it.

        Raises:
          DataError: it cannot be prepared, or its validation split is shorter than one sequence.
        """
        prepared = self.corpus.prepare(show_progress=show_progress)
        windows: Sequences = Windows(prepared.validation, seq_len=self.seq_len)
        if self.packing is not None and prepared.validation.num_documents:
            windows = self.packing(prepared.of_validation(), seq_len=self.seq_len, seed=0)
        if not windows.num_sequences:
            split = prepared.validation
            raise DataError(
                f"The held-out text is shorter than one sequence: {split.num_tokens} tokens in "
                f"{split.num_documents} documents, and seq_len={self.seq_len} needs "
                f"{self.seq_len + 1}.\nGive more text, hold out more of it (validation_fraction), "
                "set a smaller seq_len, or train without validation."
            )
        self._prepared = prepared, windows

    @property
    def num_sequences(self) -> int:
        """The number of sequences in the whole split."""
        return require_prepared(self._prepared)[1].num_sequences

    @property
    def token_bytes(self) -> Real[Tensor, " vocab"]:
        """The number of UTF-8 bytes of each token; 0 for special tokens."""
        return require_prepared(self._prepared)[0].token_bytes

    @property
    def num_batches(self) -> int:
        """The number of batches; at least 1."""
        whole = -(-self.num_sequences // self.batch_size)
        return whole if self.max_batches is None else min(whole, self.max_batches)

    def batch(self, number: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return one rank's rows of a batch: [batch_size / world_size, seq_len + 1] tokens."""
        rows = rows_of_rank(self.batch_size, rank=rank, world_size=world_size)
        used = min(self.num_batches * self.batch_size, self.num_sequences)
        first = number * self.batch_size
        chosen = np.arange(first + rows.start, min(first + rows.stop, used), dtype=np.int64)
        numbers = chosen * self.num_sequences // used
        return require_prepared(self._prepared)[1].read(numbers, epoch=0)


def require_prepared(prepared: Opened | None) -> Opened:
    """Return `prepared`; raise DataError if it is None."""
    if prepared is None:
        raise DataError("The stream is not prepared yet: call prepare() first.")
    return prepared


def rows_of_rank(size: int, *, rank: int, world_size: int) -> range:
    """Return the rows of a batch that a rank reads: consecutive, and at most one more or less."""
    return range(rank * size // world_size, (rank + 1) * size // world_size)
