"""What a trainer asks of data: batches as a function of a number, and the tokenizer behind them."""

import abc

from jaxtyping import Int64
from torch import Tensor

from fidgpt.data.tokenizer import Tokenizer


class TrainingStream(abc.ABC):
    """Batches to learn from, a pure function of the step; usable once prepared."""

    @abc.abstractmethod
    def prepare(self, *, show_progress: bool = True) -> None:
        """Makes the text ready; again, it costs nothing."""

    @abc.abstractmethod
    def batch(
        self, step: int, *, rank: int = 0, world_size: int = 1
    ) -> Int64[Tensor, "rows window"]:
        """One process's rows of the batch of a step, each of seq_len + 1 tokens."""

    @property
    @abc.abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the tokens come from."""

    @property
    @abc.abstractmethod
    def checksum(self) -> str:
        """A hash of all the tokens, by which a resumed run knows its text."""


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
