"""Streams of batches."""

import abc
import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from fidgpt.data.order import (
    CorpusPart,
    check_positive,
    derive_key,
    permute,
    require_prepared,
    rows_of_rank,
)
from fidgpt.data.packing import Packing, Sequences, concatenate
from fidgpt.data.prepared import PreparedCorpus
from fidgpt.data.tokenizers import Tokenizer
from fidgpt.data.transforms import Transform


class BegunStage(NamedTuple):
    """Shares that a run has read its texts in, which it must not say otherwise when it goes on.

    Attributes:
      begin: the step from which on, as the stage says it.
      sequence: the first sequence, counted in the order of the mixture.
      counts: of a period of sequences, how many each text has.
    """

    begin: int
    sequence: int
    counts: dict[str, int]

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        return f"step {self.begin} ({shares})"


class Curve(NamedTuple):
    """Something that is another number from step to step, as a person would look at it.

    Attributes:
      name: of it.
      unit: of its values.
      values: at each step of a run.
      full: what they are a part of.
    """

    name: str
    unit: str
    values: list[float]
    full: float


class TrainingStream(abc.ABC):
    """Batches to learn from, a pure function of the step; usable once prepared."""

    @abc.abstractmethod
    def prepare(self, *, show_progress: bool = True) -> None:
        """Makes the text ready; again, it costs nothing."""

    @abc.abstractmethod
    def batch(
        self, step: int, *, rank: int = 0, world_size: int = 1
    ) -> Int64[Tensor, "rows window"]:
        """One process's rows of the batch of a step, each of seq_len + 1 tokens.

        A negative number is a token masked out of the loss (see `fidgpt.data.mask_loss`).
        """

    def full_batches(self, steps: int) -> float:
        """How many full batches the first `steps` amount to: fewer where batches grow."""
        return float(steps)

    def stages_begun(self, steps: int) -> "list[BegunStage]":
        """The stages that the first `steps` have begun, of a stream whose texts have shares."""
        return []

    def curves(self, num_steps: int) -> "list[Curve]":
        """What changes over a run of so many steps by schedules and stages; it needs no text."""
        return []

    @property
    @abc.abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the tokens come from."""

    @property
    @abc.abstractmethod
    def checksum(self) -> str:
        """A hash of all the tokens, by which a resumed run knows its text."""


class IndexedStream(TrainingStream):
    """A stream whose sequences are numbered without end: batches are cut from their order.

    Attributes:
      batch_size: sequences of a batch, over all ranks.
    """

    batch_size: int

    @abc.abstractmethod
    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sequences with these numbers, from 0: [len(indices), seq_len + 1] token ids."""

    def require_text(self) -> None:
        """Raises DataError where the text is not there, before anything that takes long."""

    def begun(self, count: int) -> list[BegunStage]:
        """The stages in which the first `count` sequences were dealt; see `stages_begun`."""
        return []

    def in_steps(self, before: Callable[[int], int]) -> "IndexedStream":
        """This stream where `before(step)` sequences come before a step, and not equally many."""
        return self

    def stages_begun(self, steps: int) -> list[BegunStage]:
        return self.begun(steps * self.batch_size)

    def batch(
        self, step: int, *, rank: int = 0, world_size: int = 1
    ) -> Int64[Tensor, "rows window"]:
        """The rows of one rank at a step: [batch_size / world_size, seq_len + 1] token ids.

        The ranks' rows one below the other are the same for any number of ranks. Raises
        DataError if the batch cannot be dealt out evenly.
        """
        if step < 0:
            raise ValueError(f"step={step} must not be negative.")
        dealt = rows_of_rank(self.batch_size, rank=rank, world_size=world_size)
        first = step * self.batch_size
        indices = np.arange(first + dealt.start, first + dealt.stop, dtype=np.int64)
        return torch.from_numpy(self.rows(indices))


class EvaluationStream(abc.ABC):
    """Fixed batches to be measured on, the same every time; usable once prepared."""

    @abc.abstractmethod
    def prepare(self, *, show_progress: bool = True) -> None:
        """Makes the text ready; again, it costs nothing."""

    @abc.abstractmethod
    def batch(
        self, number: int, *, rank: int = 0, world_size: int = 1
    ) -> Int64[Tensor, "rows window"]:
        """One process's rows of batch `number`, each of seq_len + 1 tokens."""

    @property
    @abc.abstractmethod
    def num_batches(self) -> int:
        """How many batches there are."""

    @property
    @abc.abstractmethod
    def token_bytes(self) -> Int64[Tensor, " vocab"]:
        """The number of UTF-8 bytes that each token stands for."""


class TokenStream(IndexedStream):
    """Endless batches of the training split: every sequence once an epoch, shuffled each time anew.

    The order is a keyed permutation of the sequence numbers, another one in every epoch: a batch
    costs the same at any step, and there is no state to save.

    Args:
      corpus: the text.
      seq_len: inputs of a sequence, which holds one token more.
      batch_size: sequences of a batch, over all ranks.
      seed: decides the order, and with it what packing and transforms draw.
      packing: makes sequences of documents.
      transforms: change sequences, one after the other.

    Raises:
      DataError: a size is below one.
    """

    def __init__(
        self,
        corpus: CorpusPart,
        *,
        seq_len: int,
        batch_size: int,
        seed: int,
        packing: Packing = concatenate,
        transforms: Sequence[Transform] = (),
    ) -> None:
        self.check_arguments(seq_len=seq_len, batch_size=batch_size)
        self.corpus = corpus
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.seed = seed
        self.packing = packing
        self.transforms = transforms
        self._prepared: PreparedCorpus | None = None
        self._sequences: Sequences | None = None

    @staticmethod
    def check_arguments(*, seq_len: int, batch_size: int) -> None:
        """Raises DataError where a count is below one."""
        check_positive(seq_len, name="seq_len")
        check_positive(batch_size, name="batch_size")

    def require_text(self) -> None:
        require_source = getattr(self.corpus, "require_source", None)
        if require_source is not None:
            require_source()

    def prepare(self, *, show_progress: bool = True) -> None:
        """Open the corpus and pack it, writing what is missing; again, it costs nothing.

        Raises DataError, also when the training split is shorter than one sequence.
        """
        if self._sequences is not None:
            return
        prepared = self.corpus.prepare(show_progress=show_progress)
        for transform in self.transforms:
            transform.check(prepared.tokenizer)
        self._sequences = self.packing(prepared, seq_len=self.seq_len, seed=self.seed)
        self._prepared = prepared

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sequences with these numbers, counted on from epoch to epoch."""
        sequences, tokenizer = self._packed, self.tokenizer
        rows = np.empty((len(indices), self.seq_len + 1), dtype=np.int64)
        epochs, places = np.divmod(indices, sequences.num_sequences)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            key = derive_key(self.seed, "data", epoch)
            numbers = permute(
                places[chosen].astype(np.uint64), size=sequences.num_sequences, key=key
            )
            rows[chosen] = sequences.read(numbers.astype(np.int64), epoch=epoch)
        for transform in self.transforms:
            rows = transform(rows, indices=indices, seed=self.seed, tokenizer=tokenizer)
        return rows

    @property
    def _packed(self) -> Sequences:
        require_prepared(self._prepared)
        assert self._sequences is not None
        return self._sequences

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the training split."""
        return require_prepared(self._prepared).train.num_tokens

    @property
    def num_sequences(self) -> int:
        """The number of sequences in an epoch."""
        return self._packed.num_sequences

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the corpus was prepared with."""
        return require_prepared(self._prepared).tokenizer

    @property
    def checksum(self) -> str:
        """A hash of the prepared corpus, and of what packs and changes it, in 64 hex digits."""
        words = [self._packed.checksum, *(transform.identity() for transform in self.transforms)]
        return (
            words[0] if len(words) == 1 else hashlib.sha256("\n".join(words).encode()).hexdigest()
        )

    @property
    def token_bytes(self) -> Int64[Tensor, " vocab"]:
        """The number of UTF-8 bytes that each token stands for; 0 for special tokens."""
        return require_prepared(self._prepared).token_bytes
