"""Where the time of a run went, over several attempts and processes."""

import os
import time
from pathlib import Path

import pytest
from harmed import Run

from fidgpt.train.goodput import PHASES, Goodput, phase_seconds
from fidgpt.train.trackers.trackers import read_rows


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_time_is_counted_by_what_it_was_spent_on(tmp_path: Path, clock: Clock) -> None:
    first = Goodput(None, started=0.0, clock=clock)
    clock.passes(5)
    first.spent("restoring")
    for step in (1, 2, 3):
        clock.passes(10)
        row = first.stepped(step)
        clock.passes(1)
        first.spent("saving")
    assert row == {
        "goodput/productive": 30,
        "goodput/saving": 2,
        "goodput/restoring": 5,
        "goodput/redone": 0,
        "goodput/waiting": 0,
        "goodput/attempts": 1,
        "goodput/redone_steps": 0,
    }
    assert first.summary() == (
        "Time: 0:00:38 in one attempt: 78.9% productive, 7.9% saving, 13.2% starting or restoring."
    )
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 3, "goodput/productive": 30, "goodput/attempts": 1}\n{"ste')
    os.utime(metrics, times=(0, time.time() - 100))
    again = Goodput(metrics, started=clock.now, clock=clock)  # from the checkpoint of step 1
    again.spent("restoring")
    for step in (2, 3, 4):
        clock.passes(20)
        row = again.stepped(step)
    assert (row["goodput/redone"], row["goodput/redone_steps"]) == (40, 2)
    assert (row["goodput/productive"], row["goodput/attempts"]) == (50, 2)
    assert row["goodput/waiting"] == pytest.approx(100, abs=5)
    assert "redone (2 steps)" in again.summary() and "in 2 attempts" in again.summary()


def test_steps_after_a_roll_back_are_redone(clock: Clock) -> None:
    goodput = Goodput(None, started=0.0, clock=clock)
    redone = [goodput.stepped(step)["goodput/redone_steps"] for step in (1, 2, 3, 2, 3, 4)]
    assert redone == [0, 0, 0, 1, 2, 2]


def test_the_slowest_process_is_the_one_for_which_others_wait(clock: Clock) -> None:
    goodput = Goodput(None, started=0.0, clock=clock)
    assert goodput.slowest([[1.0] * 6]) == {}
    fast, slow = [0.1, 1.0, 3.0, 0.5, 0.0, 0.0], [0.1, 2.0, 2.0, 0.5, 0.0, 0.2]
    row = goodput.slowest([fast, fast, slow])
    assert row.pop("slowest/process") == 2 and row.pop("slowest/behind") == pytest.approx(1.0)
    assert row == {f"slowest/seconds/{name}": one for name, one in zip(PHASES, slow, strict=True)}
    goodput.slowest([slow, fast, fast])
    goodput.slowest([fast, fast, slow])
    assert "Slowest process: 2, in 67% of 3 steps" in goodput.summary()
    assert "forward 2, backward 2, optimizer 0.5" in goodput.summary()


def test_a_resumed_run_counts_the_steps_that_it_lost(run: Run, capsys) -> None:
    run.cfg.num_steps = 6
    begun = time.monotonic()
    run.train(stop_in=4)
    run.forget_after(2)
    run.train(resume=True)
    took = time.monotonic() - begun
    *_, last = read_rows(run.path / "metrics.jsonl")
    assert last["step"] == 6
    assert (last["goodput/attempts"], last["goodput/redone_steps"]) == (2, 3)  # 3, 4 and 5
    kinds = ("productive", "saving", "restoring", "redone", "waiting")
    assert all(last[f"goodput/{kind}"] > 0 for kind in kinds)
    steps = sum(map(sum, map(phase_seconds, read_rows(run.path / "metrics.jsonl"))))
    assert steps < sum(last[f"goodput/{kind}"] for kind in kinds) < took
