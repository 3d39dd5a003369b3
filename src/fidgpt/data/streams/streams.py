"""What a trainer asks of data: batches as a function of a number, and the tokenizer behind them."""

import abc

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from fidgpt.data.streams.windows import rows_of_rank
from fidgpt.data.tokenizers.tokenizer import Tokenizer


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

        A negative number is a token that is read and not learned (see `fidgpt.data.unlearned`).
        """

    def full_batches(self, steps: int) -> float:
        """How many full batches the first `steps` amount to: fewer where batches grow."""
        return float(steps)

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
