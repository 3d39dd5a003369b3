"""Tokens that a model reads and does not learn to write: how a batch of numbers says which."""

from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Int64
from numpy.typing import NDArray
from torch import Tensor

Tokens = TypeVar("Tokens", Tensor, NDArray[np.int64])


def unlearned(tokens: Tokens) -> Tokens:
    """The same tokens, read and not learned: each is written as its complement, `-1 - token`."""
    return ~tokens


def tokens_of(batch: Tokens) -> Tokens:
    """The tokens themselves, learned or not."""
    return batch ^ (batch >> 63)


def inputs_and_targets(
    batch: Int64[Tensor, "rows window"], *, all_learned: bool | None = None
) -> tuple[Int64[Tensor, "rows seq"], Int64[Tensor, "rows seq"], Bool[Tensor, "rows seq"] | None]:
    """What is read, what follows each token of it, and which of that is learned; None: all.

    A batch without memory, of which only shapes are asked, is learned whole.

    Args:
      batch: tokens, learned or not.
      all_learned: what `learns_all` says of it, where that was asked already.
    """
    if learns_all(batch) if all_learned is None else all_learned:
        return batch[:, :-1], batch[:, 1:], None
    tokens = tokens_of(batch)
    return tokens[:, :-1], tokens[:, 1:], batch[:, 1:] >= 0


def learns_all(batch: Int64[Tensor, "rows window"]) -> bool:
    """Whether no token of a batch is but read; a device that works on its own is waited for."""
    return batch.is_meta or not (batch < 0).any()


def count_learned(batch: Int64[Tensor, "rows window"]) -> int:
    """How many tokens of a batch are learned to be written."""
    targets = batch[:, 1:]
    return targets.numel() if batch.is_meta else int((targets >= 0).sum())
