"""The metrics of a step: of groups, of modules, seconds of its phases, and when they are read."""

import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from fidgpt.model.reports import Reports, Share, Tallier
from fidgpt.parallel import DataParallel
from fidgpt.processes.collectives import FusedAllReduce, Handle
from fidgpt.ranges import require_size
from fidgpt.train.device import widest_dtype
from fidgpt.train.gradients import GradientNorms, norms_of
from fidgpt.train.optimizer_groups import Group

__all__ = ["StepMeters"]

# The seconds of each phase; on an accelerator the events between which they pass.
Phases = Sequence[tuple[str, float | tuple[torch.Event, torch.Event]]]


def seconds_of(phases: Phases) -> dict[str, float]:
    """Return the seconds of each phase by `seconds/<phase>`; waits for the last one."""
    total: dict[str, float] = defaultdict(float)
    for name, seconds in phases:
        if isinstance(seconds, tuple):
            begin, end = seconds
            end.synchronize()
            seconds = begin.elapsed_time(end) / 1e3
        total[f"seconds/{name}"] += seconds
    return total


class Stopwatch:
    """Adds up seconds by phase; on an accelerator, whose work is queued, by its own clock.

    Args:
      device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._phases: list[Any] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as a phase."""
        if self._device.type == "cpu":
            begin = time.perf_counter()
            yield
            self._phases.append((name, time.perf_counter() - begin))
        else:
            begin, end = (torch.Event(self._device, enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._phases.append((name, (begin, end)))

    def take(self) -> Phases:
        """Return the phases since the last call."""
        taken, self._phases = self._phases, []
        return taken


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


class StepMeters:
    """Measures three numbers for each parameter group every `every` steps.

    `grad_norm/<group>`, before clipping; `learning_rate/<group>`; and `update_ratio/<group>`, the
    norm of the update over the norm of the weights, typically about 1e-3. Such a step keeps a copy
    of the trained weights.

    Args:
      every: steps.

    Raises:
      ValueError: it is below 1.
    """

    def __init__(self, *, every: int = 10) -> None:
        require_size(every=every)
        self.every = every

    def due(self, step: int) -> bool:
        """Return whether to measure a step, counted from 1."""
        return step % self.every == 0

    @contextmanager
    def measuring(
        self, groups: Sequence[Group], norms: GradientNorms
    ) -> Iterator[dict[str, float | Tensor]]:
        """Wrap the optimizer's step; the dict is filled when it is done."""
        before = [[p.detach().clone() for p in group["params"]] for group in groups]
        measured: dict[str, float | Tensor] = {}
        yield measured
        for name, group, old in zip(_names(groups), groups, before, strict=True):
            parameters: list[nn.Parameter] = group["params"]
            weights = torch.linalg.vector_norm(norms_of(old, parameters))
            with torch.no_grad():
                steps = [p - o for p, o in zip(parameters, old, strict=True)]
                moved = norms_of(steps, parameters)
            measured[f"grad_norm/{name}"] = norms.norm_of(parameters)
            # Weights that are all zero have no norm to compare with.
            update, dtype = torch.linalg.vector_norm(moved), widest_dtype(weights.device)
            ratio = update.to(dtype) / weights.to(dtype)
            measured[f"update_ratio/{name}"] = torch.where(weights == 0, 0.0, ratio)
            measured[f"learning_rate/{name}"] = float(group["lr"])


def _names(groups: Sequence[Group]) -> list[str]:
    """Return a name for each group that every tracker accepts; duplicates are numbered."""
    plain = [
        re.sub(r"\W+", "_", str(group.get("name", number)), flags=re.ASCII)
        for number, group in enumerate(groups)
    ]
    return [
        f"{name}_{plain[: number + 1].count(name)}" if plain.count(name) > 1 else name
        for number, name in enumerate(plain)
    ]


_MAX_NUMBERS = 1024  # of one metric in a row, which should stay readable


class StepReports:
    """Accumulates the reports of micro-batches, and settles them after the step."""

    def __init__(self) -> None:
        self._means: dict[str, Tensor] = {}
        self._tallies: dict[Tallier, Tensor] = {}
        self._sums: Handle | None = None
        self._summed: dict[Tallier, Handle] = {}
        self._num_processes = 1

    @torch.no_grad()
    def add(self, reports: Reports, share: Share | None) -> None:
        """Add the metrics and tallies of a micro-batch."""
        for name, value in self._values(reports, share).items():
            part = value.detach().float()
            self._means[name] = self._means[name] + part if name in self._means else part
        for part, tally in reports.tallies.items():
            # Cloned because a CUDA graph overwrites its outputs.
            before = self._tallies.get(part)
            self._tallies[part] = tally.clone() if before is None else before + tally

    def _values(self, reports: Reports, share: Share | None) -> dict[str, Tensor]:
        """Return the values of a micro-batch that add up over the micro-batches of a step."""
        return {**reports.metrics_of(share), **reports.losses_of(share)}

    def join(self, fused: FusedAllReduce, parallel: DataParallel) -> None:
        """Let the fused all-reduce of a step sum what was reported over the processes."""
        self._num_processes = parallel.tokens.size
        self._sums = fused.sum(torch.stack(list(self._means.values())))
        self._summed = {part: fused.sum(tally) for part, tally in self._tallies.items()}

    def means(self) -> dict[str, Tensor]:
        """Return what was reported, the same on every process."""
        assert self._sums is not None, "join() has not been called"
        means = self._sums() / self._num_processes
        return dict(zip(self._means, means.unbind(), strict=True))

    def settle(self) -> dict[str, Tensor | list[Tensor]]:
        """Give every module its tally; return what they measure, the same on every process.

        A number that several modules measure is averaged over them under its name, and listed under
        `name/layers` too. A vector is only listed, if there are no more than 1,024 numbers.
        """
        measured: dict[str, list[Tensor]] = {}
        for part, tally in self._summed.items():
            for name, value in part.settle(tally()).items():
                measured.setdefault(name, []).append(value)
        row: dict[str, Tensor | list[Tensor]] = {}
        for name, values in measured.items():
            if not values[0].dim():
                row[name] = torch.stack(values).mean()
            if sum(value.numel() for value in values) <= _MAX_NUMBERS:
                row[f"{name}/layers"] = values
        return row
