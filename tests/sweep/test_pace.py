"""Estimates of the time left: starts, steps, and runs side by side."""

from pathlib import Path

import pytest

from fidgpt.sweep import Job, Point, jobs_of
from fidgpt.sweep import progress as module
from fidgpt.sweep.points import Cost
from fidgpt.sweep.progress import Pace

SPEED = 10  # operations a second
BESIDES = 6.0  # seconds that a run takes to begin and to end


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def jobs(*flops: int) -> list[Job]:
    """Runs of ten steps, with so many operations each."""
    points = [
        Point((str(i),), (), f"{i}" * 12, str(i), Cost(parameters=1, flops=one, num_steps=10))
        for i, one in enumerate(flops)
    ]
    return jobs_of(points, Path("nowhere"))


def run(pace: Pace, clock: Clock, job: Job, *, steps: int = 10) -> None:
    """A run that was seen at each of its steps."""
    pace.started(job, 0)
    clock.now += BESIDES / 2
    for step in range(1, steps + 1):
        clock.now += job.point.cost.flops / job.point.cost.num_steps / SPEED
        pace.progressed(job, step)
    if steps == job.point.cost.num_steps:
        clock.now += BESIDES / 2
        pace.ended(job)


def test_nothing_is_estimated_before_the_first_steps(clock: Clock) -> None:
    pace, (job,) = Pace(), jobs(100)
    assert pace.left_of_all([(job, 0)]) is None
    pace.started(job, 0)
    assert pace.left(job) is None and pace.left_of_all([(job, 0)]) is None


def test_larger_runs_take_longer_and_start_as_fast(clock: Clock) -> None:
    pace, (small, large) = Pace(), jobs(100, 1000)
    run(pace, clock, small)
    step = 1.0  # the first step is measured with the start
    assert pace.left_of_all([(large, 0)]) == pytest.approx(1000 / SPEED + BESIDES + step)
    run(pace, clock, large, steps=4)
    assert pace.left(large) == pytest.approx(600 / SPEED)
    assert pace.left_of_all([(large, 4)]) == pytest.approx(600 / SPEED)


def test_steps_before_a_continuation_do_not_count(clock: Clock) -> None:
    pace, (job,) = Pace(), jobs(100)
    pace.started(job, 6)
    pace.progressed(job, 6)
    assert pace.left(job) is None
    for step in (7, 8):
        clock.now += 1.0
        pace.progressed(job, step)
    assert pace.left(job) == pace.left_of_all([(job, 8)]) == pytest.approx(2.0)


def test_runs_side_by_side_take_half_as_long(clock: Clock) -> None:
    pace, every = Pace(), jobs(100, 100, 100, 100)
    for job in every[:2]:
        pace.started(job, 0)
    for step in range(1, 11):
        clock.now += 1.0
        for job in every[:2]:
            pace.progressed(job, step)
    for job in every[:2]:
        pace.ended(job)
    assert pace.left_of_all([(job, 0) for job in every[2:]]) == pytest.approx(11.0)
