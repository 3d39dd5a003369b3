"""Batch size and sequence length schedules."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from fidgpt.data.batches import Batch
from fidgpt.data.streams import BegunStage, IndexedStream, TrainingStream, WrappedStream
from fidgpt.ranges import require_size
from fidgpt.schedule import Schedule

__all__ = ["GrowingBatch", "GrowingSequence"]


class GrowingBatch(WrappedStream):
    """Smaller batches while the schedule is below 1 (Smith et al., 2018, arXiv:1711.00489).

    Each batch continues after the previous one, so no sequence is skipped. The size at a step is
    the schedule's value times `batch_size`, rounded down to a multiple of `multiple_of`, and at
    least `multiple_of`.

    Args:
      stream: the sequences.
      batch_size: sequences of a full batch, over all ranks.
      schedule: fraction of the full batch at a step, counted from 0.
      multiple_of: granularity of the size, and the smallest one.

    Raises:
      ValueError: `batch_size` is not a multiple of `multiple_of`.
    """

    # On resume, the trainer checks that the data read so far would be the same.
    MAY_CHANGE: ClassVar[Mapping[str, str]] = {"schedule": "restart"}

    stream: IndexedStream

    def __init__(
        self, stream: IndexedStream, *, batch_size: int, schedule: Schedule, multiple_of: int = 1
    ) -> None:
        super().__init__(stream.with_batch_starts(self._start))
        require_size(multiple_of=multiple_of)
        if batch_size % multiple_of:
            raise ValueError(f"{batch_size=} is not a multiple of {multiple_of=}.")
        self.batch_size = batch_size
        self.schedule = schedule
        self.multiple_of = multiple_of
        self._ends = np.zeros(1, dtype=np.int64)  # first sequence of each step computed so far

    def size(self, step: int) -> int:
        """Return the batch size of a step, over all ranks."""
        units = int(self.schedule(step) * self.batch_size / self.multiple_of + 1e-9)
        return min(max(1, units) * self.multiple_of, self.batch_size)

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the rows of one rank: [size(step) / world_size, seq_len + 1] tokens."""
        return self.stream.batch_from(
            self._start(step), size=self.size(step), rank=rank, world_size=world_size
        )

    def full_batches(self, steps: int) -> float:
        return self._start(steps) / self.batch_size

    def growth(self, step: int) -> tuple[float, float]:
        return self.size(step) / self.batch_size, self.stream.growth(step)[1]

    def stages_begun(self, steps: int) -> list[BegunStage]:
        return self.stream.stages_within(self._start(steps))

    def curves(self, num_steps: int) -> dict[str, list[float]]:
        sizes = [float(self.size(step)) for step in range(num_steps)]
        return {"batch size": sizes, **super().curves(num_steps)}

    def _start(self, step: int) -> int:
        """Return the first sequence of a step."""
        ends = self._ends  # prefetching threads may replace it meanwhile
        num_steps = len(ends) - 1
        if step > num_steps:
            sizes = [self.size(later) for later in range(num_steps, step)]
            self._ends = ends = np.append(ends, ends[-1] + np.cumsum(sizes))
        return int(ends[step])


class GrowingSequence(WrappedStream):
    """Shorter sequences while the schedule is below 1 (Li et al., 2021, arXiv:2108.06084).

    Each sequence is split into several rows, so that a batch keeps its number of tokens, attention
    costs less and gradients are more stable early in a run. The length is the largest `seq_len /
    2^n` that does not exceed the schedule's value times `seq_len`. Micro-batches keep their number
    of rows.

    Args:
      stream: sequences of `seq_len` + 1 tokens.
      seq_len: input tokens of a full sequence.
      schedule: fraction of the full length at a step, counted from 0.
      min_seq_len: shortest length; `seq_len` divided by a power of two.

    Raises:
      ValueError: `min_seq_len` is not `seq_len` divided by a power of two.
    """

    MAY_CHANGE: ClassVar[Mapping[str, str]] = {"schedule": "restart"}

    def __init__(
        self, stream: TrainingStream, *, seq_len: int, schedule: Schedule, min_seq_len: int
    ) -> None:
        super().__init__(stream)
        require_size(min_seq_len=min_seq_len)
        halves = seq_len // min_seq_len
        if seq_len % min_seq_len or halves & (halves - 1) or not halves:
            raise ValueError(
                f"{min_seq_len=} must be {seq_len=} divided by a power of two, such as "
                f"{seq_len} / 4."
            )
        self.seq_len = seq_len
        self.schedule = schedule
        self.min_seq_len = min_seq_len

    def length(self, step: int) -> int:
        """Return the sequence length at a step, in tokens."""
        length, allowed = self.seq_len, self.schedule(step) * self.seq_len + 1e-9
        while length > self.min_seq_len and length > allowed:
            length //= 2
        return length

    def growth(self, step: int) -> tuple[float, float]:
        return self.stream.growth(step)[0], self.length(step) / self.seq_len

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the stream's rows, each split into seq_len / length(step) rows."""
        length = self.length(step)
        batch = self.stream.batch(step, rank=rank, world_size=world_size)
        return batch.map(lambda rows: rows.unfold(1, length + 1, length).flatten(0, 1))

    def curves(self, num_steps: int) -> dict[str, list[float]]:
        lengths = [float(self.length(step)) for step in range(num_steps)]
        return {"sequence length": lengths, **super().curves(num_steps)}
