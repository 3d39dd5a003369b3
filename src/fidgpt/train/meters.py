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
from fidgpt.ranges import require_size
from fidgpt.train.run_directory import RunError
from fidgpt.train.step import GradientNorms, norms_of

__all__ = ["StepMeters"]

Group = dict[str, Any]


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
        require_size("every", every)
        self.every = every

    def due(self, step: int) -> bool:
        """Return whether to measure a step, counted from 1."""
        return step % self.every == 0

    @contextmanager
    def measuring(
        self, groups: Sequence[Group], norms: GradientNorms
    ) -> Iterator[dict[str, float]]:
        """Wrap the optimizer's step; the dict is filled when it is done."""
        before = [[p.detach().clone() for p in group["params"]] for group in groups]
        measured: dict[str, float] = {}
        yield measured
        for name, group, old in zip(_names(groups), groups, before, strict=True):
            parameters: list[nn.Parameter] = group["params"]
            weights = torch.linalg.vector_norm(norms_of(old)).item()
            with torch.no_grad():
                moved = norms_of([p - o for p, o in zip(parameters, old, strict=True)])
            measured[f"grad_norm/{name}"] = norms.over(parameters).item()
            # Weights that are all zero have no norm to compare with.
            update = torch.linalg.vector_norm(moved).item()
            measured[f"update_ratio/{name}"] = update / weights if weights else 0.0
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

    def add(self, reports: Reports, *, share: float) -> None:
        """Add those of a micro-batch that has `share` of the rows."""
        for name, value in {**reports.metrics, **reports.losses}.items():
            part = value.detach().float() * share
            self._means[name] = self._means[name] + part if name in self._means else part
        for part, tally in reports.tallies.items():
            # Cloned because a CUDA graph overwrites its outputs.
            before = self._tallies.get(part)
            self._tallies[part] = tally.clone() if before is None else before + tally

    def means(self, parallel: DataParallel) -> dict[str, float]:
        """Return what was reported as numbers, the same on every process."""
        means = parallel.mean(torch.stack(list(self._means.values()))).tolist()
        return dict(zip(self._means, means, strict=True))

    def settle(self, parallel: DataParallel) -> dict[str, Any]:
        """Give every module its tally; return what they measure, the same on every process.

        A number that several modules measure is averaged over them under its name, and listed under
        `name/layers` too. A vector is only listed, if there are no more than 1,024 numbers.
        """
        measured: dict[str, list[Tensor]] = {}
        for part, tally in self._summed(parallel):
            for name, value in part.settle(tally).items():
                measured.setdefault(name, []).append(value)
        row: dict[str, Any] = {}
        for name, values in measured.items():
            if not values[0].dim():
                row[name] = torch.stack(values).mean().item()
            if sum(value.numel() for value in values) <= _MAX_NUMBERS:
                row[f"{name}/layers"] = [value.tolist() for value in values]
        return row

    def _summed(self, parallel: DataParallel) -> list[tuple[Tallier, Tensor]]:
        """Return each module with its tally over all processes, by one all-reduce."""
        if not self._tallies:
            return []
        tallies = list(self._tallies.values())
        joined = parallel.sum(torch.cat([tally.flatten() for tally in tallies]))
        summed = joined.split([tally.numel() for tally in tallies])
        return [
            (part, total.view_as(tally))
            for (part, tally), total in zip(self._tallies.items(), summed, strict=True)
        ]


class Stopwatch:
    """Adds up seconds by phase; on an accelerator, whose work is queued, by its own clock.

    Args:
      device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.Event, torch.Event]] = []

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as a phase; phases do not nest."""
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
        """Return the seconds of each phase since the last call, by `seconds/<phase>`.

        On an accelerator, waits until the last phase is computed.
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


# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_TRAIN_WITH_LESS = (
    "Compute fewer sequences at once, which leaves the batch unchanged "
    "(fiddler:set_micro_batch_size), recompute activations (fiddler:use_recompute), or choose "
    "smaller sizes; --print=summary shows what each needs."
)


def keep_freed_memory() -> None:
    """Let glibc's malloc keep freed memory for the next request; without glibc, do nothing.

    glibc returns every large tensor to the kernel when it is freed, and gets it back one zeroed
    page at a time a moment later. Training frees and allocates the same tensors at every step:
    measured, 50,000 to 200,000 page faults and 12 to 20% of the time. The process then stays at
    its peak size, which for training is its size anyway.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)


def peak_memory(device: torch.device) -> int:
    """Return the peak bytes of this process: of the accelerator's memory, or of the machine's."""
    if device.type == "cpu":
        import resource  # late: not on every system, and not needed for accelerators

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return torch.accelerator.max_memory_allocated(device)


@contextmanager
def within_memory(*, remedy: str = _TRAIN_WITH_LESS) -> Iterator[None]:
    """Turn a lack of memory into a RunError with a remedy.

    Args:
      remedy: what to do; that of training by default.

    Raises:
      RunError: there is not enough memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # Torch has no class for it on CPUs.
        is_known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not is_known and "can't allocate memory" not in str(error):
            raise
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(f"there is not enough memory: {line:.200}\n{remedy}") from error
