"""Batches of the held-out split, always the same ones in the same order, for validation."""

import numpy as np
from jaxtyping import Int64
from torch import Tensor

from fidgpt.data.errors import DataError
from fidgpt.data.order import (
    CorpusPart,
    check_positive,
    count_windows,
    read_windows,
    require_prepared,
    rows_of_rank,
)
from fidgpt.data.prepared import PreparedCorpus
from fidgpt.data.streams import EvaluationStream


class HeldOut(EvaluationStream):
    """Sequences of the validation split, one after the other.

    Where not every sequence is used, those used are spread evenly over the split. Only the last
    batch of all may be smaller than the others; of it a rank may get fewer rows than another, or
    none.

    Args:
      corpus: the text.
      seq_len: inputs of a sequence, which holds one token more.
      batch_size: sequences of a batch, over all ranks.
      num_batches: that are used at most; all of the split unless said.

    Raises:
      DataError: a count is below one.
    """

    def __init__(
        self, corpus: CorpusPart, *, seq_len: int, batch_size: int, num_batches: int | None = None
    ) -> None:
        self.check_arguments(seq_len=seq_len, batch_size=batch_size, num_batches=num_batches)
        self.corpus = corpus
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.max_batches = num_batches
        self._prepared: PreparedCorpus | None = None

    @staticmethod
    def check_arguments(*, seq_len: int, batch_size: int, num_batches: int | None) -> None:
        """Raises DataError where a count is below one."""
        check_positive(seq_len, name="seq_len")
        check_positive(batch_size, name="batch_size")
        if num_batches is not None:
            check_positive(num_batches, name="num_batches")

    def prepare(self, *, show_progress: bool = True) -> None:
        """Open the corpus, writing it first if it is missing; again, it costs nothing.

        Raises DataError, also when the validation split is shorter than one sequence.
        """
        prepared = self.corpus.prepare(show_progress=show_progress)
        split = prepared.validation
        if not count_windows(split, seq_len=self.seq_len):
            rest = prepared.train.num_documents
            more = "hold out more of it (validation_fraction), " if rest else ""
            raise DataError(
                f"The held-out text is shorter than one sequence: {split.num_tokens} tokens in "
                f"{split.num_documents} documents, and seq_len={self.seq_len} needs "
                f"{self.seq_len + 1}.\nGive more text, {more}set a smaller seq_len, or do without "
                "validation."
            )
        self._prepared = prepared

    @property
    def num_sequences(self) -> int:
        """The number of sequences in the whole split."""
        return count_windows(require_prepared(self._prepared).validation, seq_len=self.seq_len)

    @property
    def token_bytes(self) -> Int64[Tensor, " vocab"]:
        """The number of UTF-8 bytes that each token stands for; 0 for special tokens."""
        return require_prepared(self._prepared).token_bytes

    @property
    def num_batches(self) -> int:
        """The number of batches; at least 1."""
        whole = -(-self.num_sequences // self.batch_size)
        return whole if self.max_batches is None else min(whole, self.max_batches)

    def batch(
        self, number: int, *, rank: int = 0, world_size: int = 1
    ) -> Int64[Tensor, "rows window"]:
        """The rows of one rank in batch `number`: [batch_size / world_size, seq_len + 1] token ids.

        Raises DataError if the batch cannot be dealt out evenly, IndexError past the last batch.
        """
        if not 0 <= number < self.num_batches:
            raise IndexError(f"batch {number} of {self.num_batches} batches")
        rows = rows_of_rank(self.batch_size, rank=rank, world_size=world_size)
        used = min(self.num_batches * self.batch_size, self.num_sequences)
        first = number * self.batch_size
        places = np.arange(first + rows.start, min(first + rows.stop, used), dtype=np.int64)
        numbers = places * self.num_sequences // used
        return read_windows(
            require_prepared(self._prepared).validation, numbers, seq_len=self.seq_len
        )
