"""How fast the runs of a sweep go, and so how long they will take."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from fidgpt.sweep.runners.job import Job


@dataclass
class _Run:
    """One run that goes: when it was started, and between which steps and times it was seen."""

    begun: float
    step: int
    first: tuple[float, int] | None = None
    last: tuple[float, int] | None = None

    @property
    def stepping(self) -> tuple[float, int]:
        """Seconds between its first step and its last one, and how many it made in them."""
        if self.first is None or self.last is None:
            return 0.0, 0
        return self.last[0] - self.first[0], self.last[1] - self.first[1]


class Pace:
    """Steps against the clock, of every run that was seen running.

    What a run takes to begin and to end is known apart from its steps: of short runs it is most of
    the time, and larger ones take no more of it.
    """

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._runs: dict[str, _Run] = {}
        self._steps_seconds, self._steps_flops = 0.0, 0.0  # of runs that are over
        self._besides: list[float] = []  # seconds of those, less their steps
        self._all_seconds = 0.0

    def started(self, job: Job, step: int) -> None:
        """A run begins, or goes on after `step` steps."""
        self._runs[job.point.fingerprint] = _Run(time.monotonic(), step)

    def progressed(self, job: Job, step: int) -> None:
        """A step is done."""
        run = self._runs[job.point.fingerprint]
        if step > run.step:  # not one of before the run went on
            run.step = step
            run.last = (time.monotonic(), step)
            run.first = run.first or run.last

    def ended(self, job: Job) -> None:
        """A run is over."""
        run = self._runs.pop(job.point.fingerprint, None)
        if run is None:
            return
        seconds, steps = run.stepping
        whole = time.monotonic() - run.begun
        self._steps_seconds += seconds
        self._steps_flops += steps * _flops(job)
        self._besides.append(whole - seconds)
        self._all_seconds += whole

    def left(self, job: Job) -> float | None:
        """Seconds that a run still takes for its steps; None while nobody knows."""
        run = self._runs.get(job.point.fingerprint)
        if run is None or run.first is None:
            return None
        done = run.step - run.first[1]
        passed = time.monotonic() - run.first[0]
        return passed / done * (job.point.cost.num_steps - run.step) if done else None

    def left_of_all(self, jobs: Iterable[tuple[Job, int]]) -> float | None:
        """Seconds that all runs still take, each given with its last step; None as above."""
        seconds, flops, left, besides = self._steps_seconds, self._steps_flops, 0.0, 0.0
        for job, step in jobs:
            left += _flops(job) * (job.point.cost.num_steps - step)
            run = self._runs.get(job.point.fingerprint)
            if run is None or run.first is None:
                besides += self._usual_besides()
            else:
                more, steps = run.stepping
                seconds, flops = seconds + more, flops + steps * _flops(job)
        return (seconds / flops * left + besides) / self._side_by_side() if flops else None

    def _usual_besides(self) -> float:
        """Seconds that a run takes without its steps: of those that are over, or that began."""
        began = [run.first[0] - run.begun for run in self._runs.values() if run.first is not None]
        known = self._besides or began
        return sum(known) / len(known) if known else 0.0

    def _side_by_side(self) -> float:
        """How many runs went at a time so far."""
        now = time.monotonic()
        running = sum(now - run.begun for run in self._runs.values())
        return max(1.0, (self._all_seconds + running) / max(now - self._begun, 1e-9))


def _flops(job: Job) -> float:
    """Of a step."""
    return job.point.cost.flops / job.point.cost.num_steps
