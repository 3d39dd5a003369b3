"""Batches of training tokens as a pure function of the step."""

import numpy as np
from jaxtyping import Int64
from torch import Tensor

from fidgpt.data.errors import DataError
from fidgpt.data.permutation import derive_key, permute
from fidgpt.data.prepared import PreparedCorpus
from fidgpt.data.streams import TrainingStream
from fidgpt.data.tokenizer import Tokenizer
from fidgpt.data.windows import (
    CorpusPart,
    check_positive,
    count_windows,
    read_windows,
    require_prepared,
    rows_of_rank,
)


class TokenStream(TrainingStream):
    """Endless batches of the training split: every sequence once an epoch, shuffled each time anew.

    A sequence is a window of `seq_len` inputs and one more token; neighbours share one token, so
    that in an epoch every token but the first is a target once (save a rest shorter than
    `seq_len`). Windows run on across documents. The order is a keyed permutation of the sequence
    numbers: a batch costs the same at any step, and there is no state to save. `batch_size`
    counts sequences over all ranks.
    """

    def __init__(self, corpus: CorpusPart, *, seq_len: int, batch_size: int, seed: int) -> None:
        self.check_arguments(seq_len=seq_len, batch_size=batch_size)
        self.corpus = corpus
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.seed = seed
        self._prepared: PreparedCorpus | None = None

    @staticmethod
    def check_arguments(*, seq_len: int, batch_size: int) -> None:
        """Raises DataError where a count is below one."""
        for name, count in locals().items():
            check_positive(count, name=name)

    def prepare(self, *, show_progress: bool = True) -> None:
        """Open the corpus, writing it first if it is missing; again, it costs nothing.

        Raises DataError, also when the training split is shorter than one sequence.
        """
        prepared = self.corpus.prepare(show_progress=show_progress)
        split = prepared.train
        if not count_windows(split, seq_len=self.seq_len):
            raise DataError(
                f"The corpus is shorter than one sequence: {split.num_tokens} training tokens, and "
                f"seq_len={self.seq_len} needs {self.seq_len + 1}.\n"
                "Give more text, or set a smaller seq_len."
            )
        self._prepared = prepared

    def batch(
        self, step: int, *, rank: int = 0, world_size: int = 1
    ) -> Int64[Tensor, "rows window"]:
        """The rows of one rank at a step: [batch_size / world_size, seq_len + 1] token ids.

        The ranks' rows one below the other are the same for any number of ranks. Raises
        ValueError if the batch cannot be dealt out evenly.
        """
        if step < 0:
            raise ValueError(f"step={step} must not be negative.")
        rows = rows_of_rank(self.batch_size, rank=rank, world_size=world_size)
        first = step * self.batch_size + rows.start
        drawn = np.arange(first, first + len(rows), dtype=np.uint64)
        size = self.num_sequences
        epochs, positions = np.divmod(drawn, np.uint64(size))
        numbers = np.empty(len(rows), dtype=np.int64)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            chosen = epochs == epoch
            key = derive_key(self.seed, "data", epoch)
            numbers[chosen] = permute(positions[chosen], size=size, key=key)
        return read_windows(require_prepared(self._prepared).train, numbers, seq_len=self.seq_len)

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the training split."""
        return require_prepared(self._prepared).train.num_tokens

    @property
    def num_sequences(self) -> int:
        """The number of sequences in an epoch."""
        return count_windows(require_prepared(self._prepared).train, seq_len=self.seq_len)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the corpus was prepared with."""
        return require_prepared(self._prepared).tokenizer

    @property
    def checksum(self) -> str:
        """A hash of the prepared corpus, its tokenizer included, as 64 hexadecimal digits."""
        return require_prepared(self._prepared).checksum

    @property
    def token_bytes(self) -> Int64[Tensor, " vocab"]:
        """The number of UTF-8 bytes that each token stands for; 0 for special tokens."""
        return require_prepared(self._prepared).token_bytes
