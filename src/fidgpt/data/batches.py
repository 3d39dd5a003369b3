"""Batches: rows of tokens, and which of them count in the loss.

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
    """

    tokens: Int64[Tensor, "rows window"]
    counted: Bool[Tensor, "rows window"] | None = None

    @staticmethod
    def of(tokens: NDArray[np.int64], counted: NDArray[np.bool_] | None = None) -> "Batch":
        """Return a batch that shares the memory of arrays."""
        return Batch(
            torch.from_numpy(tokens), None if counted is None else torch.from_numpy(counted)
        )

    @staticmethod
    def cat(batches: Sequence["Batch"], *, dim: int = 0) -> "Batch":
        """Return batches, on the CPU, one below the other or along `dim`."""
        tokens = np.concatenate([batch.tokens.numpy() for batch in batches], dim)
        if all(batch.counted is None for batch in batches):
            return Batch.of(tokens)
        return Batch.of(tokens, np.concatenate([batch.mask.numpy() for batch in batches], dim))

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
    def mask(self) -> Bool[Tensor, "rows window"]:
        """The same as `counted`, of ones if all tokens count."""
        if self.counted is None:
            return torch.ones_like(self.tokens, dtype=torch.bool)
        return self.counted

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        return self.tokens.nbytes + (0 if self.counted is None else self.counted.nbytes)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return a batch of what `change` makes of the tokens, and of the mask if there is one."""
        return Batch(change(self.tokens), None if self.counted is None else change(self.counted))

    def split(self, num_rows: int) -> list["Batch"]:
        """Return batches of at most `num_rows` rows."""
        tokens = self.tokens.split(num_rows)
        masks = [None] * len(tokens) if self.counted is None else self.counted.split(num_rows)
        return [Batch(*rows) for rows in zip(tokens, masks, strict=True)]

    def to(self, device: torch.device) -> "Batch":
        """Return a copy on a device; through pinned memory if that is an accelerator's."""
        pins = device.type == "cuda" and self.tokens.device.type == "cpu"
        batch = self.map(Tensor.pin_memory) if pins else self
        return batch.map(lambda x: x.to(device, non_blocking=x.is_pinned()))


def rows_by_group(
    groups: NDArray[np.int64], read: Callable[[int, NDArray[np.bool_]], Batch]
) -> Batch:
    """Return rows in order, of which those of a group are read at once.

    Args:
      groups: the group of each row.
      read: returns the rows of a group, given the group and which rows are in it.
    """
    parts = [read(group, groups == group) for group in np.unique(groups).tolist()]
    if len(parts) == 1:
        return parts[0]
    places = np.argsort(np.argsort(groups, kind="stable"))
    return Batch.cat(parts).map(lambda rows: torch.from_numpy(rows.numpy()[places]))
