"""Seconds of the phases of a step, on accelerators by their own clock."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Timing:
    """Seconds of phases, which the device may still be computing."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, float | tuple[torch.Event, torch.Event]]] = []

    def add(self, phase: str, seconds: float | tuple[torch.Event, torch.Event]) -> None:
        """Add seconds to a phase, or what passes between two events."""
        self._parts.append((phase, seconds))

    def read(self) -> dict[str, float]:
        """Return the seconds of each phase by `seconds/<phase>`; waits for the last one."""
        total: dict[str, float] = defaultdict(float)
        for phase, seconds in self._parts:
            if isinstance(seconds, tuple):
                begin, end = seconds
                end.synchronize()
                seconds = begin.elapsed_time(end) / 1e3
            total[f"seconds/{phase}"] += seconds
        return total


class Stopwatch:
    """Adds up seconds by phase; on an accelerator, whose work is queued, by its own clock.

    Args:
      device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._timing = Timing()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as a phase."""
        if self._device.type == "cpu":
            begin = time.perf_counter()
            yield
            self._timing.add(name, time.perf_counter() - begin)
        else:
            begin, end = (torch.Event(self._device, enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._timing.add(name, (begin, end))

    def take(self) -> Timing:
        """Return the phases since the last call."""
        taken, self._timing = self._timing, Timing()
        return taken
