"""What streams share: windows of a split, and a global batch dealt out to ranks."""

from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from fidgpt.data.errors import DataError
from fidgpt.data.preparing.prepared import PreparedCorpus, Split


@runtime_checkable
class CorpusPart(Protocol):
    """What a stream reads from: `Corpus`, or `CorpusDirectory`."""

    def prepare(self, *, show_progress: bool = True) -> PreparedCorpus:
        """Make the corpus ready to be read; again, it costs nothing."""
        ...


def require_prepared(corpus: PreparedCorpus | None) -> PreparedCorpus:
    """The corpus that a stream opened; DataError if it has not opened any."""
    if corpus is None:
        raise DataError("The stream is not prepared yet: call prepare() first.")
    return corpus


def check_positive(value: int, *, name: str) -> None:
    """Raise DataError if a size is below 1."""
    if value < 1:
        raise DataError(f"{name}={value} must be at least 1.")


def count_windows(split: Split, *, seq_len: int) -> int:
    """How many windows of `seq_len` + 1 tokens, each sharing one with the next, a split holds."""
    return max(0, (split.num_tokens - 1) // seq_len)


def rows_of_rank(size: int, *, rank: int, world_size: int) -> range:
    """Which rows of a batch of `size` rows a rank holds: equal, consecutive shares."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} is not one of world_size={world_size} ranks.")
    if size % world_size:
        raise DataError(
            f"batch_size={size} cannot be dealt out evenly to world_size={world_size} ranks.\n"
            f"Choose a multiple of {world_size}, for example batch_size="
            f"{-(-size // world_size) * world_size}."
        )
    share = size // world_size
    return range(rank * share, (rank + 1) * share)


def read_windows(
    split: Split, numbers: NDArray[np.int64], *, seq_len: int
) -> Int64[Tensor, "rows window"]:
    """The windows with these numbers, [len(numbers), seq_len + 1]."""
    return torch.from_numpy(split.read(numbers * seq_len, length=seq_len + 1))
