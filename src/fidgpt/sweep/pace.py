"""How fast the runs of a sweep go, and so how long they will take."""

import time
from collections.abc import Iterable

from fidgpt.sweep.runners.job import Job


class Pace:
    """Steps against the clock, of every run that was seen running."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[float, int]] = {}
        self._steps: dict[str, int] = {}
        self._begun = time.monotonic()
        self._flops = 0.0

    def started(self, job: Job, step: int) -> None:
        """A run begins, or goes on after `step` steps."""
        key = job.point.fingerprint
        self._steps[key] = step
        self._marks.pop(key, None)

    def progressed(self, job: Job, step: int) -> None:
        """A step is done."""
        key = job.point.fingerprint
        gained = max(0, step - self._steps[key])  # none in rows of before a run went on
        if gained:
            self._marks.setdefault(key, (time.monotonic(), step))
        self._flops += gained * job.point.cost.flops / job.point.cost.num_steps
        self._steps[key] = max(step, self._steps[key])

    def ended(self, job: Job) -> None:
        """A run is over."""
        self._marks.pop(job.point.fingerprint, None)

    def left(self, job: Job) -> float | None:
        """Seconds that a run still takes; None while nobody knows."""
        key = job.point.fingerprint
        if key not in self._marks:
            return None
        begun, first = self._marks[key]
        done = self._steps[key] - first
        left = job.point.cost.num_steps - self._steps[key]
        return (time.monotonic() - begun) / done * left if done else None

    def left_of_all(self, jobs: Iterable[tuple[Job, int]]) -> float | None:
        """Seconds that all runs still take, each given with its last step; None as above."""
        left = sum(
            job.point.cost.flops * (1 - step / job.point.cost.num_steps) for job, step in jobs
        )
        seconds = time.monotonic() - self._begun
        return seconds * left / self._flops if self._flops else None
