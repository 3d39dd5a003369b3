"""A batch in the parts that are computed at once, looked through before a device has it."""

from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from fidgpt.data import count_learned, learns_all


class MicroBatch(NamedTuple):
    """Sequences that one device computes at once.

    Attributes:
      rows: on the device.
      num_learned: tokens of them that are learned.
      learns_all: whether none of them is but read.
    """

    rows: Int64[Tensor, "rows window"]
    num_learned: int
    learns_all: bool


def micro_batches(
    batch: Int64[Tensor, "rows window"], *, size: int | None, device: torch.device
) -> list[MicroBatch]:
    """Cuts a batch, and sends it to a device in one go.

    An accelerator that is asked for a number has to compute first all that it was given to do, and
    has nothing to do while Python thinks about the answer. So all that is to be known of the
    tokens is read where they were made, and not micro-batch by micro-batch.

    Args:
      batch: on the CPU, as streams make it, or on the device.
      size: rows of a part, at most; all of them unless said.
      device: where they are computed.
    """
    size = size or max(1, len(batch))
    told = [(count_learned(part), learns_all(part)) for part in batch.split(size)]
    parts = _sent(batch, device).split(size)
    return [MicroBatch(rows, *each) for rows, each in zip(parts, told, strict=True)]


def _sent(batch: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda" or batch.device.type != "cpu":
        return batch.to(device)
    return batch.pin_memory().to(device, non_blocking=True)
