"""What processes add up in a step: many numbers, by one all-reduce."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from fidgpt.processes.processes import Processes

# Returns the sum, or the numbers of all processes, once the all-reduce was started.
Handle = Callable[[], Tensor]


class FusedAllReduce:
    """Adds up numbers over the processes of a run, by one all-reduce beside other work.

    Reading a number from an accelerator waits for all queued work, and every collective has a
    latency that no bandwidth helps. So whatever processes have to know of each other in a step
    joins one of these: on every process the same values in the same order. Results are tensors on
    the device, which the device waits for and Python does not. Sums are made in float64. A single
    process keeps its own values, without a copy.

    Args:
      world: all processes of the run.
      tokens: the processes that compute different tokens.
      is_first_copy: whether this process is the first of those that compute the same tokens.
      device: of the numbers.
    """

    def __init__(
        self, world: Processes, *, tokens: Processes, is_first_copy: bool, device: torch.device
    ) -> None:
        self._world = world
        self._is_first_copy = is_first_copy
        self._device = device
        self._values: list[tuple[Tensor, bool]] = []
        self._sums: Sequence[Tensor] = ()
        self._joined: Tensor | None = None
        self._work: dist.Work | None = None
        # Whether anything is summed over more than one process.
        self._is_shared = tokens.size > 1

    def sum(self, value: Tensor | int | float) -> Handle:
        """Join a tensor or number to be summed over the processes that compute different tokens."""
        return self._join(self._tensor(value))

    def sum_everywhere(self, value: Tensor) -> Handle:
        """Join a tensor to be summed over all processes, those with the same tokens too."""
        self._is_shared = self._is_shared or self._world.size > 1
        return self._join(value.detach(), of_all=True)

    def gather(self, value: int | float) -> Handle:
        """Join a number; each process then knows the numbers of all: [processes]."""
        own, size = self._tensor(value).reshape(1), self._world.size
        if size == 1:
            return self._join(own)
        self._is_shared, rank = True, self._world.rank
        return self._join(F.pad(own, (rank, size - rank - 1)), of_all=True)

    def start(self) -> None:
        """Begin the all-reduce; nothing may join any more."""
        self._sums = [value for value, _ in self._values]
        if not self._is_shared or not self._values:
            return
        counted = [
            value if self._is_first_copy or of_all else torch.zeros_like(value)
            for value, of_all in self._values
        ]
        self._joined = torch.cat([value.flatten().double() for value in counted])
        self._work = dist.all_reduce(self._joined, async_op=True)

    def _result(self, number: int) -> Tensor:
        """Return the sums of what joined as the given one; the device waits for them."""
        if self._work is not None and self._joined is not None:
            self._work.wait()
            self._work = None
            parts = self._joined.split([value.numel() for value in self._sums])
            self._sums = [
                total.to(value.dtype).view(value.shape)
                for total, value in zip(parts, self._sums, strict=True)
            ]
        return self._sums[number]

    def _tensor(self, value: Tensor | int | float) -> Tensor:
        if isinstance(value, Tensor):
            return value.detach()
        dtype = torch.float32 if self._world.size == 1 else torch.float64
        # Filled there: a copy from the CPU would wait for queued work.
        return torch.full((), value, dtype=dtype, device=self._device)

    def _join(self, value: Tensor, *, of_all: bool = False) -> Handle:
        self._values.append((value, of_all))
        return partial(self._result, len(self._values) - 1)
