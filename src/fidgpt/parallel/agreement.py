"""What processes agree on in a step: sums of many numbers, by one all-reduce."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from fidgpt.parallel.data_parallel import DataParallel


class Agreement:
    """Adds up numbers over the processes of a run, by one all-reduce beside other work.

    Reading a number from an accelerator waits for all queued work, and every collective has a
    latency that no bandwidth helps. So whatever processes have to know of each other in a step
    joins one of these: on every process the same values in the same order. Results are tensors on
    the device, which the device waits for and Python does not. Sums are made in float64. A single
    process keeps its own values, without a copy.

    Args:
      parallel: the processes.
    """

    def __init__(self, parallel: "DataParallel") -> None:
        self.parallel = parallel
        self._parts: list[tuple[Tensor, bool]] = []
        self._sums: Sequence[Tensor] = ()
        self._joined: Tensor | None = None
        self._work: dist.Work | None = None
        # Whether anything is summed over more than one process.
        self._is_shared = parallel.tokens.size > 1

    def sum(self, value: Tensor | int | float) -> "Agreed":
        """Join a tensor or number to be summed over the processes that compute different tokens."""
        return self._join(self._tensor(value))

    def sum_everywhere(self, value: Tensor) -> "Agreed":
        """Join a tensor to be summed over all processes, those of the axis `tensor` too."""
        self._is_shared = self._is_shared or self.parallel.world_size > 1
        return self._join(value.detach(), of_all=True)

    def each(self, value: int | float) -> "Agreed":
        """Join a number, of which each process then knows those of all: [processes]."""
        own, size = self._tensor(value).reshape(1), self.parallel.world_size
        if size == 1:
            return self._join(own)
        self._is_shared, rank = True, self.parallel.rank
        return self._join(F.pad(own, (rank, size - rank - 1)), of_all=True)

    def start(self) -> None:
        """Begin the all-reduce; nothing may join any more."""
        self._sums = [part for part, _ in self._parts]
        if not self._is_shared or not self._parts:
            return
        # Processes that differ only on the axis `tensor` have the same numbers.
        is_first = self.parallel.places.axes["tensor"].index == 0
        counted = [
            part if is_first or of_all else torch.zeros_like(part) for part, of_all in self._parts
        ]
        self._joined = torch.cat([part.flatten().double() for part in counted])
        self._work = dist.all_reduce(self._joined, async_op=True)

    def result(self, number: int) -> Tensor:
        """Return the sums of what joined as the given one; the device waits for them."""
        if self._work is not None and self._joined is not None:
            self._work.wait()
            self._work = None
            sizes = [part.numel() for part in self._sums]
            parts = zip(self._joined.split(sizes), self._sums, strict=True)
            self._sums = [total.to(own.dtype).view(own.shape) for total, own in parts]
        return self._sums[number]

    def _tensor(self, value: Tensor | int | float) -> Tensor:
        if isinstance(value, Tensor):
            return value.detach()
        dtype = torch.float32 if self.parallel.world_size == 1 else torch.float64
        # Filled there: a copy from the CPU would wait for queued work.
        return torch.full((), value, dtype=dtype, device=self.parallel.device)

    def _join(self, part: Tensor, *, of_all: bool = False) -> "Agreed":
        self._parts.append((part, of_all))
        return Agreed(self, len(self._parts) - 1)


class Agreed:
    """A value that joined an `Agreement`.

    Args:
      agreement: which it joined.
      number: among the values that joined.
    """

    def __init__(self, agreement: Agreement, number: int) -> None:
        self._agreement = agreement
        self._number = number

    @property
    def value(self) -> Tensor:
        """The sum, or the numbers of all processes, once the all-reduce was started."""
        return self._agreement.result(self._number)
