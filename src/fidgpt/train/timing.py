"""Seconds of the phases of a step, on accelerators by their own clock."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

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
