"""Jobs that train nothing: small processes that fail, save and stop as a run does."""

import sys
from pathlib import Path
from typing import Any

import pytest
from run_facts import reproducible

from fidgpt import forking
from fidgpt.sweep import Job, LocalRunner, Point, jobs_of
from fidgpt.sweep.points import Cost
from fidgpt.train.trackers.trackers import read_rows

NUM_STEPS = 5
# Fails at a step as often as a file requires; saves its step when it is stopped.
_SCRIPT = """
import json, os, pathlib, signal, sys, time
folder, steps, seconds, fails_at, words = sys.argv[1:]
folder, stopped = pathlib.Path(folder), []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda *_: stopped.append(1))
folder.mkdir(exist_ok=True)
(folder / "config.json").write_text("{}")
(folder / "pid").write_text(str(os.getpid()))
saved = folder / "step"
begin = int(saved.read_text()) if saved.exists() else 0
left = folder.with_suffix(".fails")
with (folder / "metrics.jsonl").open("a") as file:
    for step in range(begin + 1, int(steps) + 1):
        time.sleep(float(seconds))
        if step == int(fails_at) and (fails := int(left.read_text())) > 0:
            left.write_text(str(fails - 1))
            sys.exit(words)
        print(json.dumps({"step": step, "loss": 1 / step}), file=file, flush=True)
        saved.write_text(str(step))
        if stopped:
            sys.exit(130)
"""


class Toys:
    """Makes jobs whose commands are toys.

    Args:
      directory: that of the sweep.
      seconds: of a step.
    """

    def __init__(self, directory: Path, *, seconds: float = 0.0) -> None:
        self.directory = directory
        self.seconds = seconds
        self.fails: dict[str, str] = {}
        self.lasts: dict[str, int] = {}  # steps of a toy, by its name, where they are not all

    def jobs(self, names: list[str]) -> list[Job]:
        """A job of each name."""
        return jobs_of([toy_point(name) for name in names], self.directory)

    def fail(self, job: Job, *, times: int, words: str) -> None:
        """Lets a job fail so many times before its third step, with these words."""
        job.directory.parent.mkdir(parents=True, exist_ok=True)
        job.directory.with_suffix(".fails").write_text(str(times))
        self.fails[job.point.fingerprint] = words

    def command(self, job: Job) -> list[str]:
        """The command of a toy."""
        words = self.fails.get(job.point.fingerprint)
        failure = ["3", words] if words else ["0", ""]
        return [
            *(sys.executable, "-c", _SCRIPT, str(job.directory)),
            *(
                str(self.lasts.get(job.point.values.get("seed", ""), NUM_STEPS)),
                str(self.seconds),
                *failure,
            ),
        ]


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run that do not depend on how fast it went."""
    path = run / "metrics.jsonl"
    return [reproducible(row) for row in read_rows(path)] if path.exists() else []


def steps_of(job: Job) -> list[int]:
    """The steps of a run, in the order in which its attempts made them."""
    return [row["step"] for row in rows_of(job.directory)]


def toy_point(name: str) -> Point:
    """A point of that name, which nothing is behind."""
    return Point(
        directives=(f"set:seed={name}",),
        fingerprint=name * 12,
        name=f"seed={name}",
        cost=Cost(parameters=10, flops=100, num_steps=NUM_STEPS),
        values={"seed": name},
    )


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toys:
    """Toys in place of runs, in a directory of the test's own."""
    made = Toys(tmp_path / "sweep")
    for name in ("command", "start_command", "resume_command"):
        monkeypatch.setattr(Job, name, property(made.command))
    monkeypatch.setattr(LocalRunner, "pause", 0.02)
    monkeypatch.setattr(forking, "is_safe", lambda: False)
    return made
