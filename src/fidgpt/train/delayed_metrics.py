"""The metrics of steps that the device may still be computing, and when they are read."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from fidgpt.train.device import widest_dtype
from fidgpt.train.gradients import GradientNorms
from fidgpt.train.timing import Phases

Row = dict[str, Any]


class AsyncMetrics:
    """Numbers on their way from the device, all in one copy that Python does not wait for.

    Args:
      values: by name; tensors and lists of tensors are read, and others kept.
      device: where the tensors are.
    """

    def __init__(self, values: Mapping[str, Any], device: torch.device) -> None:
        self._leaves, self._structure = tree_flatten(dict(values))
        dtype = widest_dtype(device)
        flat = [tensor.detach().flatten().to(device, dtype) for tensor in self._tensors()]
        joined = torch.cat(flat) if flat else torch.zeros(0)
        self._event = None
        if joined.device.type != "cpu":
            joined = joined.to("cpu", non_blocking=True)  # into pinned memory
            self._event = torch.Event(device)
            self._event.record()
        self._joined = joined

    def read(self) -> Row:
        """Return the values, in which numbers and lists of numbers have replaced tensors."""
        if self._event is not None:
            self._event.synchronize()
        parts = iter(self._joined.split([tensor.numel() for tensor in self._tensors()]))
        leaves = [
            next(parts).to(leaf.dtype).view(leaf.shape).tolist()
            if isinstance(leaf, Tensor)
            else leaf
            for leaf in self._leaves
        ]
        return tree_unflatten(leaves, self._structure)

    def _tensors(self) -> list[Tensor]:
        return [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]


class StepStatus(NamedTuple):
    """What each process sends to the others in a step.

    Attributes:
      signal: number of the signal that the process received; 0 for none.
      is_time: 1 if it is time to save, by its clock.
      seconds: of the phases of its last finished step, as in `goodput.PHASES`.
    """

    signal: float = 0.0
    is_time: float = 0.0
    seconds: Sequence[float] = ()


@dataclass(eq=False, kw_only=True)
class LaunchedStep:
    """An optimizer step whose work is queued.

    Attributes:
      step: its number, from 1.
      metrics: those that `Trainer.update` returns, and `statuses` if there are several processes.
      norms: gradient norms not yet checked for NaN; None afterwards.
      measured: by evaluators after the step.
      memory: bytes at most, so far.
      phases: their seconds.
      is_counted: whether any of its tokens counts in the loss, once its metrics were read.
      statuses: of all processes, by rank, once its metrics were read; empty for a single process.
      logged: its row, once that was logged.
    """

    step: int
    metrics: AsyncMetrics
    norms: GradientNorms | None
    measured: Row = field(default_factory=dict)
    memory: int = 0
    phases: Phases = ()
    is_counted: bool = True
    statuses: Sequence[StepStatus] = ()
    logged: Row = field(default_factory=dict)

    @cached_property
    def row(self) -> Row:
        """The metrics of the step, by name; waits until they are computed."""
        row = self.metrics.read()
        self.is_counted = bool(row.pop("is_counted", True))
        numbers = zip(*row.pop("statuses", ()), strict=True)
        self.statuses = [StepStatus(signal, due, seconds) for signal, due, *seconds in numbers]
        return row

    @property
    def signal(self) -> float:
        """The largest number of a signal that a process received."""
        return max((status.signal for status in self.statuses), default=0.0)

    @property
    def is_time(self) -> bool:
        """Whether it is time to save, by the clock of the main process."""
        return bool(self.statuses) and bool(self.statuses[0].is_time)


class DelayedMetrics:
    """Finishes the steps of a run in order, each once the device has computed it.

    A CPU has computed what was launched. An accelerator computes it while Python queues the next
    step, so that rows come one step late and the queue never runs empty.

    Args:
      finish: logs the row of a step.
      device: where steps are computed.

    Attributes:
      lag: steps that may be unfinished while the next one is launched.
    """

    def __init__(self, finish: Callable[[LaunchedStep], object], device: torch.device) -> None:
        self.lag = 0 if device.type == "cpu" else 1
        self._finish = finish
        self._steps: deque[LaunchedStep] = deque()

    @property
    def oldest(self) -> int | None:
        """The first step that is not finished."""
        return self._steps[0].step if self._steps else None

    def add(self, step: LaunchedStep) -> None:
        """Add a step that was launched after the others."""
        self._steps.append(step)

    def finish(self, most: int = 0) -> Sequence[LaunchedStep]:
        """Finish steps until at most so many are left, and return them.

        A step that fails to be finished stays the oldest.
        """
        finished: list[LaunchedStep] = []
        while len(self._steps) > most:
            self._finish(self._steps[0])
            finished.append(self._steps.popleft())
        return finished

    def clear(self) -> None:
        """Forget the steps that are left."""
        self._steps.clear()
