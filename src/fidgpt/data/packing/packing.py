"""How documents become sequences of one length: what a packing is, and the plain one."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.errors import DataError
from fidgpt.data.preparing.prepared import PreparedCorpus
from fidgpt.data.streams.windows import count_windows


@runtime_checkable
class Sequences(Protocol):
    """The training split in sequences, numbered from 0, of which an epoch visits each once."""

    @property
    def num_sequences(self) -> int:
        """How many there are; at least one."""
        ...

    @property
    def checksum(self) -> str:
        """A hash of all tokens and of how they are packed, as 64 hexadecimal digits."""
        ...

    def read(self, numbers: NDArray[np.int64], *, epoch: int) -> NDArray[np.int64]:
        """The sequences with these numbers in an epoch: [len(numbers), seq_len + 1] token ids."""
        ...


@runtime_checkable
class Packing(Protocol):
    """Makes sequences of a corpus; `concatenate` and `best_fit` are two."""

    def __call__(self, corpus: PreparedCorpus, /, *, seq_len: int, seed: int) -> Sequences:
        """The training split in sequences of `seq_len` + 1 tokens.

        Raises:
          DataError: there is less than one sequence.
        """
        ...


def concatenate(corpus: PreparedCorpus, *, seq_len: int, seed: int) -> Sequences:
    """All documents one after the other, cut into windows of `seq_len` inputs and one more token.

    Neighbours share one token, so that in an epoch every token but the first is a target once
    (save a rest shorter than `seq_len`). Windows run on across documents.
    """
    split = corpus.train
    if not count_windows(split, seq_len=seq_len):
        raise DataError(
            f"The corpus is shorter than one sequence: {split.num_tokens} training tokens, and "
            f"seq_len={seq_len} needs {seq_len + 1}.\n"
            "Give more text, or set a smaller seq_len."
        )
    return _Windows(corpus, seq_len=seq_len)


class _Windows:
    """The windows of a split, the same in every epoch."""

    def __init__(self, corpus: PreparedCorpus, *, seq_len: int) -> None:
        self.num_sequences = count_windows(corpus.train, seq_len=seq_len)
        self.checksum = corpus.checksum
        self._split = corpus.train
        self._seq_len = seq_len

    def read(self, numbers: NDArray[np.int64], *, epoch: int) -> NDArray[np.int64]:
        return self._split.read(numbers * self._seq_len, length=self._seq_len + 1)
