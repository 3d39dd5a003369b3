"""Batches: rows of tokens, which of them count in the loss, and which are no padding.

Rows are joined and ordered by numpy: torch would use its threads, in which the model computes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int64
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Batch"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of tokens. Each token but the first of a row is the target of those before it.

    Attributes:
      tokens: token ids; a row has one more than the model reads.
      counted: whether each token counts in the loss as a target; None if all do.
      real: whether each token is no padding, which no statistic of tokens counts; None if all are.
    """

    tokens: Int64[Tensor, "rows window"]
    counted: Bool[Tensor, "rows window"] | None = None
    real: Bool[Tensor, "rows window"] | None = None

    @staticmethod
    def of(
        tokens: NDArray[np.int64],
        counted: NDArray[np.bool_] | None = None,
        real: NDArray[np.bool_] | None = None,
    ) -> "Batch":
        """Return a batch that shares the memory of arrays."""
        masks = (None if mask is None else torch.from_numpy(mask) for mask in (counted, real))
        return Batch(torch.from_numpy(tokens), *masks)

    @staticmethod
    def cat(batches: Sequence["Batch"], *, dim: int = 0) -> "Batch":
        """Return batches, on the CPU, one below the other or along `dim`."""
        tokens = np.concatenate([batch.tokens.numpy() for batch in batches], dim)
        masks: list[NDArray[np.bool_] | None] = []
        for parts in ([batch.counted for batch in batches], [batch.real for batch in batches]):
            each = [
                torch.ones_like(batch.tokens, dtype=torch.bool) if mask is None else mask
                for batch, mask in zip(batches, parts, strict=True)
            ]
            is_whole = all(mask is None for mask in parts)
            masks.append(None if is_whole else np.concatenate([mask.numpy() for mask in each], dim))
        return Batch.of(tokens, *masks)

    @property
    def inputs(self) -> Int64[Tensor, "rows seq"]:
        """What the model reads."""
        return self.tokens[:, :-1]

    @property
    def targets(self) -> Int64[Tensor, "rows seq"]:
        """The token that follows each input."""
        return self.tokens[:, 1:]

    @property
    def counted_targets(self) -> Bool[Tensor, "rows seq"] | None:
        """Whether each target counts in the loss; None if all do."""
        return None if self.counted is None else self.counted[:, 1:]

    @property
    def real_inputs(self) -> Bool[Tensor, "rows seq"] | None:
        """Whether each input is no padding; None if all are."""
        return None if self.real is None else self.real[:, :-1]

    @property
    def mask(self) -> Bool[Tensor, "rows window"]:
        """The same as `counted`, of ones if all tokens count."""
        if self.counted is None:
            return torch.ones_like(self.tokens, dtype=torch.bool)
        return self.counted

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        masks = (mask for mask in (self.counted, self.real) if mask is not None)
        return self.tokens.nbytes + sum(mask.nbytes for mask in masks)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return a batch of what `change` makes of the tokens, and of the masks there are."""
        masks = (None if mask is None else change(mask) for mask in (self.counted, self.real))
        return Batch(change(self.tokens), *masks)

    def sequences(self, number: int) -> "Batch":
        """Return the sequences of rows that hold so many each, as rows of their own."""
        return self.map(lambda x: x.unflatten(1, (number, -1)).flatten(0, 1))

    def split(self, num_rows: int) -> list["Batch"]:
        """Return batches of at most `num_rows` rows."""
        begins = range(0, max(1, len(self.tokens)), num_rows)
        return [self.map(lambda x, begin=begin: x[begin : begin + num_rows]) for begin in begins]

    def to(self, device: torch.device) -> "Batch":
        """Return a copy on a device; through pinned memory if that is an accelerator's."""
        pins = device.type == "cuda" and self.tokens.device.type == "cpu"
        batch = self.map(Tensor.pin_memory) if pins else self
        return batch.map(lambda x: x.to(device, non_blocking=x.is_pinned()))


def rows_by_group(
    groups: NDArray[np.int64], read: Callable[[int, NDArray[np.bool_]], Batch]
) -> Batch:
    """Return rows in order; all rows of a group are read at once.

    Args:
      groups: the group of each row.
      read: returns the rows of a group, given the group and which rows are in it.
    """
    parts = [read(group, groups == group) for group in np.unique(groups).tolist()]
    if len(parts) == 1:
        return parts[0]
    positions = np.argsort(np.argsort(groups, kind="stable"))
    return Batch.cat(parts).map(lambda rows: torch.from_numpy(rows.numpy()[positions]))
