"""Batches and sequences that grow during a run, by the schedules that learning rates have."""

import abc
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from fidgpt.data.errors import DataError
from fidgpt.data.order import check_positive, rows_of_rank
from fidgpt.data.streams import BegunStage, Curve, IndexedStream, TrainingStream
from fidgpt.data.tokenizers import Tokenizer
from fidgpt.schedule import Schedule


class Growing(TrainingStream):
    """A stream whose batches are cut otherwise; its text and its tokens stay.

    Args:
      stream: where the sequences come from.
    """

    def __init__(self, stream: TrainingStream) -> None:
        self.stream = stream

    def prepare(self, *, show_progress: bool = True) -> None:
        self.stream.prepare(show_progress=show_progress)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.stream.tokenizer

    @property
    def checksum(self) -> str:
        return self.stream.checksum

    def stages_begun(self, steps: int) -> list[BegunStage]:
        return self.stream.stages_begun(steps)

    def curves(self, num_steps: int) -> list[Curve]:
        return [self._curve(num_steps), *self.stream.curves(num_steps)]

    @abc.abstractmethod
    def _curve(self, num_steps: int) -> Curve:
        """What this one lets grow."""


class GrowingBatch(Growing):
    """Batches of fewer sequences where the schedule is below 1 (Smith et al., 2018, 1711.00489).

    No sequence is left out: a batch begins with the sequence after the last one's end. The size at
    a step is that share of `batch_size`, down to a whole number of `multiple_of`, and no less than
    one of them.

    Args:
      stream: numbered sequences.
      batch_size: sequences of a full batch, over all ranks.
      schedule: share of the full batch at a step, counted from 0.
      multiple_of: what every size is a multiple of; the processes of a run, or a multiple of them.

    Raises:
      ValueError: `multiple_of` does not fit into the batch.
    """

    # What was read so far is compared when a run goes on.
    MAY_CHANGE: ClassVar[Mapping[str, str]] = {"schedule": "restart"}

    stream: IndexedStream

    def __init__(
        self, stream: IndexedStream, *, batch_size: int, schedule: Schedule, multiple_of: int = 1
    ) -> None:
        super().__init__(stream.in_steps(self._before))
        self.check_arguments(batch_size=batch_size, multiple_of=multiple_of)
        self.batch_size = batch_size
        self.schedule = schedule
        self.multiple_of = multiple_of
        self._ends = np.zeros(1, dtype=np.int64)  # sequences before each step known so far

    @staticmethod
    def check_arguments(*, batch_size: int, multiple_of: int) -> None:
        """Raises ValueError unless a full batch is a whole number of `multiple_of`."""
        check_positive(multiple_of, name="multiple_of")
        if batch_size % multiple_of:
            raise ValueError(f"{batch_size=} is not a whole number of {multiple_of=}.")

    def size(self, step: int) -> int:
        """Sequences of the batch of a step, over all ranks."""
        units = int(self.schedule(step) * self.batch_size / self.multiple_of + 1e-9)
        return min(max(1, units) * self.multiple_of, self.batch_size)

    def batch(
        self, step: int, *, rank: int = 0, world_size: int = 1
    ) -> Int64[Tensor, "rows window"]:
        """The rows of one rank at a step: [size(step) / world_size, seq_len + 1] token ids."""
        if self.multiple_of % world_size:  # at once, and not at the first odd size
            raise DataError(
                f"Batches grow by {self.multiple_of} sequences, which cannot be dealt evenly to "
                f"{world_size=} ranks.\nLet multiple_of be a multiple of {world_size}."
            )
        dealt = rows_of_rank(self.size(step), rank=rank, world_size=world_size)
        first = self._before(step)
        numbers = np.arange(first + dealt.start, first + dealt.stop, dtype=np.int64)
        return torch.from_numpy(self.stream.rows(numbers))

    def full_batches(self, steps: int) -> float:
        return self._before(steps) / self.batch_size

    def stages_begun(self, steps: int) -> list[BegunStage]:
        return self.stream.begun(self._before(steps))

    def _curve(self, num_steps: int) -> Curve:
        sizes = [float(self.size(step)) for step in range(num_steps)]
        return Curve("batch size", "sequences", sizes, float(self.batch_size))

    def _before(self, step: int) -> int:
        """How many sequences are read before a step."""
        ends = self._ends  # threads that make batches ahead may replace it meanwhile
        known = len(ends) - 1
        if step > known:
            sizes = [self.size(later) for later in range(known, step)]
            self._ends = ends = np.append(ends, ends[-1] + np.cumsum(sizes))
        return int(ends[step])


class GrowingSequence(Growing):
    """Each sequence in several shorter ones where the schedule is below 1 (Li et al., 2108.06084).

    A batch holds as many tokens as ever, in more and shorter rows, so that attention costs less
    and gradients are calmer early in a run. Lengths are `seq_len` halved as often as it takes, and
    the longest of them that the schedule allows is taken. Micro-batches keep their number of rows.

    Args:
      stream: sequences of `seq_len` tokens and one more.
      seq_len: inputs of a full sequence.
      schedule: share of the full length at a step, counted from 0.
      min_seq_len: the shortest length; must be `seq_len` halved a whole number of times.

    Raises:
      ValueError: `min_seq_len` is no such length.
    """

    MAY_CHANGE: ClassVar[Mapping[str, str]] = {"schedule": "restart"}

    def __init__(
        self, stream: TrainingStream, *, seq_len: int, schedule: Schedule, min_seq_len: int
    ) -> None:
        super().__init__(stream)
        self.check_arguments(seq_len=seq_len, min_seq_len=min_seq_len)
        self.seq_len = seq_len
        self.schedule = schedule
        self.min_seq_len = min_seq_len

    @staticmethod
    def check_arguments(*, seq_len: int, min_seq_len: int) -> None:
        """Raises ValueError unless halving the one gives the other."""
        check_positive(min_seq_len, name="min_seq_len")
        halves = seq_len // min_seq_len
        if seq_len % min_seq_len or halves & (halves - 1) or not halves:
            raise ValueError(
                f"{min_seq_len=} is not {seq_len=} halved a whole number of times: {seq_len} / 2 "
                "/ 2 and so on."
            )

    def length(self, step: int) -> int:
        """Inputs of a sequence at a step."""
        length, allowed = self.seq_len, self.schedule(step) * self.seq_len + 1e-9
        while length > self.min_seq_len and length > allowed:
            length //= 2
        return length

    def batch(
        self, step: int, *, rank: int = 0, world_size: int = 1
    ) -> Int64[Tensor, "rows window"]:
        """The stream's rows, each as seq_len / length(step) rows of length(step) + 1 tokens."""
        rows = self.stream.batch(step, rank=rank, world_size=world_size)
        length = self.length(step)
        return rows.unfold(1, length + 1, length).flatten(0, 1)

    def full_batches(self, steps: int) -> float:
        return self.stream.full_batches(steps)

    def _curve(self, num_steps: int) -> Curve:
        lengths = [float(self.length(step)) for step in range(num_steps)]
        return Curve("sequence length", "tokens", lengths, float(self.seq_len))
