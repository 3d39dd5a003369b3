"""How long the phases of a step take, on a device that may compute while Python goes on."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator

import torch


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
