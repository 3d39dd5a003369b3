"""Sums over divided parameters, and vectors made of them, of which each process keeps a part.

An optimizer whose state is a few vectors for each matrix needs no whole matrices: each process sums
over what it holds, the sums of all processes are added up, and each process of the run, replicas
included, keeps its part of the vectors. They are a thousandth of the parameters in size, so that
what is sent is little.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fidgpt.placement import Shard, block_of, shards_of, whole_shape
from fidgpt.processes import Processes
from fidgpt.processes.collectives import all_gather

__all__ = ["ProcessStatistics", "Share"]


class Share(NamedTuple):
    """What a process holds of a parameter.

    Attributes:
      shape: of the whole.
      place: of what it holds in each dimension; None if that is nothing.
      counts: whether it is the first of the processes that hold the same.
      most: elements of the largest part that any process holds.
    """

    shape: tuple[int, ...]
    place: tuple[slice, ...] | None
    counts: bool
    most: int


class ProcessStatistics:
    """What the processes of a run add up and keep together; all of them call each method alike.

    Args:
      processes: all of the run.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._shares: dict[tuple[int, ...], list[Share]] = {}

    def shares(self, parameters: Sequence[Tensor]) -> list[Share]:
        """Return what this process holds of parameters."""
        key = tuple(map(id, parameters))
        if key not in self._shares:
            blocks = map(block_of, parameters)
            own = [block and (block.begin, tuple(block.tensor.shape)) for block in blocks]
            everyone = self._processes.gather(own)
            self._shares[key] = [
                self._share(whole_shape(one), [held[number] for held in everyone])
                for number, one in enumerate(parameters)
            ]
        return self._shares[key]

    def _share(self, whole: tuple[int, ...], held: Sequence[tuple | None]) -> Share:
        own = held[self._processes.rank]
        place = None
        if own is not None:
            place = tuple(slice(begin, begin + size) for begin, size in zip(*own, strict=True))
        counts = own is not None and held.index(own) == self._processes.rank
        return Share(whole, place, counts, max(math.prod(one[1]) for one in held if one))

    def sum(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of tensors over all processes, by one all-reduce."""
        return self._processes.all_reduce(values)

    def kept(self, whole: Tensor, dim: int) -> Tensor:
        """Return this process's part of a whole tensor, which is divided along a dimension."""
        size = whole.shape[dim]
        part = Shard(self._processes, dim % whole.dim(), size, self._processes.size)
        return self.placed(part.cut(whole).clone(), dim, size)

    def placed(self, part: Tensor, dim: int, size: int) -> Tensor:
        """Note that a tensor is this process's part of one of `size` along a dimension."""
        axis = self._processes
        vars(part)["shards"] = (Shard(axis, dim % part.dim(), size, axis.size),)
        return part

    def wholes(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return whole tensors of the parts that processes keep, by one all-gather."""
        if not parts:
            return []
        # As rows of a matrix, one for each element along the dimension in which it is divided.
        places = [(place.dim or 0, place.size) for one in parts for place in shards_of(one)]
        rows = [one.movedim(dim, 0) for one, (dim, _) in zip(parts, places, strict=True)]
        widths = [math.prod(row.shape[1:]) for row in rows]
        lengths = [
            -(-size // self._processes.size) * width
            for width, (_, size) in zip(widths, places, strict=True)
        ]
        padded = [
            F.pad(row.flatten(), (0, length - row.numel()))
            for row, length in zip(rows, lengths, strict=True)
        ]
        joined = all_gather(torch.cat(padded), self._processes, 0).view(self._processes.size, -1)
        return [
            own.reshape(-1, *row.shape[1:])[:size].movedim(0, dim)
            for own, row, (dim, size) in zip(joined.split(lengths, 1), rows, places, strict=True)
        ]
