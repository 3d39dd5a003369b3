"""Meters: speed, memory and what a step reports."""

import contextlib
import ctypes
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fidgpt.model.reports import Reports, Tallier
from fidgpt.parallel import DataParallel
from fidgpt.train.run_directory import RunError
from fidgpt.train.step import GradientNorms, norms_of

Group = dict[str, Any]


class StepMeters:
    """Measures every `every` steps, of each group: three numbers, named after the group.

    `grad_norm/<group>`, before clipping; `learning_rate/<group>`; and `update_ratio/<group>`, the
    norm of what the step changed over the norm of the weights, of which about 1e-3 is usual. Such
    a step keeps a copy of the weights that are trained.

    Args:
      every: steps.

    Raises:
      ValueError: it is below 1.
    """

    def __init__(self, *, every: int = 10) -> None:
        self.check_arguments(every=every)
        self.every = every

    @staticmethod
    def check_arguments(*, every: int) -> None:
        """Raises ValueError unless `every` is at least 1."""
        if every < 1:
            raise ValueError(f"{every=} must be 1 or more steps.")

    def due(self, step: int) -> bool:
        """Whether to measure a step, counted from 1."""
        return step % self.every == 0

    @contextmanager
    def measuring(
        self, groups: Sequence[Group], norms: GradientNorms
    ) -> Iterator[dict[str, float]]:
        """Around the optimizer's step; the dict is filled once it is done."""
        before = [[p.detach().clone() for p in group["params"]] for group in groups]
        measured: dict[str, float] = {}
        yield measured
        for name, group, old in zip(_names(groups), groups, before, strict=True):
            parameters: list[nn.Parameter] = group["params"]
            weights = torch.linalg.vector_norm(norms_of(old)).item()
            with torch.no_grad():
                moved = norms_of([p - o for p, o in zip(parameters, old, strict=True)])
            measured[f"grad_norm/{name}"] = norms.over(parameters).item()
            # Weights that are all zero have no size to compare with.
            update = torch.linalg.vector_norm(moved).item()
            measured[f"update_ratio/{name}"] = update / weights if weights else 0.0
            measured[f"learning_rate/{name}"] = float(group["lr"])


def _names(groups: Sequence[Group]) -> list[str]:
    """One for each group, such as every tracker takes; groups of the same name are numbered."""
    said = [
        re.sub(r"\W+", "_", str(group.get("name", number)), flags=re.ASCII)
        for number, group in enumerate(groups)
    ]
    return [
        f"{name}_{said[: number + 1].count(name)}" if said.count(name) > 1 else name
        for number, name in enumerate(said)
    ]


_MOST_NUMBERS = 1024  # of one metric in a row, which is to stay a line that can be read


class StepReports:
    """Adds up the reports of micro-batches, and settles them once the step is done."""

    def __init__(self) -> None:
        self._means: dict[str, Tensor] = {}
        self._tallies: dict[Tallier, Tensor] = {}

    def add(self, reports: Reports, *, share: float) -> None:
        """Adds those of a micro-batch that has `share` of the rows."""
        for name, value in {**reports.metrics, **reports.losses}.items():
            part = value.detach().float() * share
            self._means[name] = self._means[name] + part if name in self._means else part
        for part, tally in reports.tallies.items():
            # Kept for longer than a CUDA graph keeps what it gives.
            before = self._tallies.get(part)
            self._tallies[part] = tally.clone() if before is None else before + tally

    def means(self, parallel: DataParallel) -> dict[str, float]:
        """What was reported as numbers, the same on every process."""
        means = parallel.mean(torch.stack(list(self._means.values()))).tolist()
        return dict(zip(self._means, means, strict=True))

    def settle(self, parallel: DataParallel) -> dict[str, Any]:
        """Lets every part hear its tally; returns what they measure, the same on every process.

        A number that several parts measure is averaged over them under its name, and is in a list
        under `name/layers` too. A vector is there alone, if there are no more than 1,024 numbers.
        """
        measured: dict[str, list[Tensor]] = {}
        for part, tally in self._summed(parallel):
            for name, value in part.settle(tally).items():
                measured.setdefault(name, []).append(value)
        row: dict[str, Any] = {}
        for name, values in measured.items():
            row |= _listed(name, values)
        return row

    def _summed(self, parallel: DataParallel) -> list[tuple[Tallier, Tensor]]:
        """Each part with its tally over all processes, which speak of all of them at once."""
        if not self._tallies:
            return []
        tallies = list(self._tallies.values())
        joined = parallel.sum(torch.cat([tally.flatten() for tally in tallies]))
        summed = joined.split([tally.numel() for tally in tallies])
        return [
            (part, total.view_as(tally))
            for (part, tally), total in zip(self._tallies.items(), summed, strict=True)
        ]


def _listed(name: str, values: list[Tensor]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if not values[0].dim():
        row[name] = torch.stack(values).mean().item()
    if sum(value.numel() for value in values) <= _MOST_NUMBERS:
        row[f"{name}/layers"] = [value.tolist() for value in values]
    return row


class Stopwatch:
    """Adds up seconds by phase. Where work is queued on an accelerator, its own clock is read.

    Args:
      device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.Event, torch.Event]] = []

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is done inside counts for a phase; phases do not lie in one another."""
        if self._device.type == "cpu":
            begin = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - begin
        else:
            begin, end = self._event(), self._event()
            begin.record()
            yield
            end.record()
            self._events.append((name, begin, end))

    def take(self) -> dict[str, float]:
        """The seconds of each phase since they were last taken, by `seconds/<phase>`.

        On an accelerator, waits for the last of the phases to be computed.
        """
        for name, begin, end in self._events:
            end.synchronize()
            self._seconds[name] += begin.elapsed_time(end) / 1e3
        taken = {f"seconds/{name}": seconds for name, seconds in self._seconds.items()}
        self._events.clear()
        self._seconds.clear()
        return taken

    def _event(self) -> torch.Event:
        return torch.Event(self._device, enable_timing=True)


# Numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_TRAIN_WITH_LESS = (
    "Let fewer sequences be computed at once, which leaves the batch as it is "
    "(fiddler:set_micro_batch_size), keep less of each (fiddler:use_recompute), or choose "
    "smaller sizes; --print=summary counts what each needs."
)


def keep_freed_memory() -> None:
    """Lets malloc keep what is freed for the next request; elsewhere than on glibc, does nothing.

    glibc hands every large tensor back to the kernel when it is freed, and gets it back one
    zeroed page at a time a moment later. Training frees and wants the same tensors at every step:
    measured, 50,000 to 200,000 page faults and 12 to 20% of the time. The process then stays as
    large as it was at its largest, which for training is its size anyway.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)


def peak_memory(device: torch.device) -> int:
    """Bytes that this process had at most: of the accelerator's memory, or of the machine's."""
    if device.type == "cpu":
        import resource  # late: not every system has it, and an accelerator needs it not

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return torch.accelerator.max_memory_allocated(device)


@contextmanager
def within_memory(*, remedy: str = _TRAIN_WITH_LESS) -> Iterator[None]:
    """Tells what to do where the memory of a device does not suffice.

    Args:
      remedy: what is told; that of training unless said.

    Raises:
      RunError: it does not.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_lack(error):
            raise
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(f"there is not enough memory: {line:.200}\n{remedy}") from error


def _is_lack(error: Exception) -> bool:
    """Whether it says so; on CPUs torch has no class for it."""
    is_known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return is_known or "can't allocate memory" in str(error)
