"""Estimates of the time left: starts, steps, and runs side by side."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fidgpt.sweep import Job, Point, jobs_of, progress
from fidgpt.sweep.points import Cost


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = SimpleNamespace(now=100.0, monotonic=lambda: made.now)
    monkeypatch.setattr(progress, "time", made)
    return made


def jobs(*flops: int) -> list[Job]:
    """Runs of ten steps, with so many operations each."""
    costs = [Cost(parameters=1, flops=one, num_steps=10) for one in flops]
    points = [Point((), f"{i}" * 12, str(i), cost) for i, cost in enumerate(costs)]
    return jobs_of(points, Path("nowhere"))


def test_larger_runs_take_longer(clock: Any) -> None:
    pace, (small, large) = progress.Pace(), jobs(100, 1000)
    assert pace.left([(small, 0)]) is None
    pace.started(small, 0)
    assert pace.left([(small, 0)]) is None  # before its first step
    clock.now += 13  # three of them to begin
    pace.progressed(small, 10)
    assert pace.left([(large, 0)]) == pytest.approx(130)
    pace.started(large, 0)
    clock.now += 43
    pace.progressed(large, 4)
    assert pace.left([(large, 4)]) == pytest.approx(600 * 56 / 500)


def test_runs_side_by_side_take_less(clock: Any) -> None:
    pace, (first, second, third) = progress.Pace(), jobs(100, 100, 100)
    for one in (first, second):
        pace.started(one, 0)
    clock.now += 10
    for one in (first, second):
        pace.progressed(one, 10)
    assert pace.left([(third, 0)]) == pytest.approx(5)


def test_steps_before_a_continuation_do_not_count(clock: Any) -> None:
    pace, (job,) = progress.Pace(), jobs(100)
    pace.started(job, 6)
    pace.progressed(job, 6)
    assert pace.left([(job, 6)]) is None
    clock.now += 2
    pace.progressed(job, 8)
    assert pace.left([(job, 8)]) == pytest.approx(2.0)
