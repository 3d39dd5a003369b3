"""Estimates of the time left: starts, steps, and runs side by side."""

from pathlib import Path

import pytest

from fidgpt.sweep import Job, Point, jobs_of
from fidgpt.sweep import progress as module
from fidgpt.sweep.points import Cost
from fidgpt.sweep.progress import Pace

SPEED = 10  # operations a second
START = 3.0  # seconds that a run takes to begin


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
    clock.now += START
    for step in range(1, steps + 1):
        clock.now += job.point.cost.flops / job.point.cost.num_steps / SPEED
        pace.progressed(job, step)


def test_nothing_is_estimated_before_the_first_steps(clock: Clock) -> None:
    pace, (job,) = Pace(), jobs(100)
    assert pace.left([(job, 0)]) is None
    pace.started(job, 0)
    assert pace.left([(job, 0)]) is None


def test_larger_runs_take_longer(clock: Clock) -> None:
    pace, (small, large) = Pace(), jobs(100, 1000)
    run(pace, clock, small)
    each = (START + 100 / SPEED) / 100
    assert pace.left([(large, 0)]) == pytest.approx(1000 * each)
    run(pace, clock, large, steps=4)
    each = (2 * START + 500 / SPEED) / 500
    assert pace.left([(large, 4)]) == pytest.approx(600 * each)


def test_runs_side_by_side_take_less(clock: Clock) -> None:
    pace, (first, second, third) = Pace(), jobs(100, 100, 100)
    for one in (first, second):
        pace.started(one, 0)
    clock.now += 10
    for one in (first, second):
        pace.progressed(one, 10)
    assert pace.left([(third, 0)]) == pytest.approx(5)


def test_steps_before_a_continuation_do_not_count(clock: Clock) -> None:
    pace, (job,) = Pace(), jobs(100)
    pace.started(job, 6)
    pace.progressed(job, 6)
    assert pace.left([(job, 6)]) is None
    for step in (7, 8):
        clock.now += 1.0
        pace.progressed(job, step)
    assert pace.left([(job, 8)]) == pytest.approx(2.0)
