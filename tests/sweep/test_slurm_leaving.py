"""Who watches points in Slurm, and leaves, is killed, or ends them: nothing runs twice."""

# ruff: noqa: F811  (a fixture is a parameter of the same name)

import os
import signal
import time
from collections.abc import Sequence

import pytest

from fidgpt.sweep import Job
from fidgpt.sweep.runners.slurm import SlurmRunner

from .conftest import Toys
from .slurm_here import SlurmHere
from .test_local import RecordedEvents, interrupt_when
from .test_slurm import cluster, here, numbers, steps_of, when  # noqa: F401

pytestmark = pytest.mark.xdist_group("processes")


def in_a_process(runner: SlurmRunner, jobs: Sequence[Job]) -> int:
    """Runs jobs in a process of their own; returns its number."""
    pid = os.fork()
    if pid == 0:
        try:
            runner.run(jobs, RecordedEvents())
        finally:
            os._exit(0)
    return pid


def test_a_sweep_that_was_killed_follows_its_jobs_again(here: SlurmHere, toys: Toys) -> None:
    toys.seconds = 0.3
    jobs = toys.jobs(["1", "2", "3"])
    pid = in_a_process(SlurmRunner(jobs=2), jobs)
    thread = when(lambda: jobs[0].directory.exists(), lambda: os.kill(pid, signal.SIGKILL))
    os.waitpid(pid, 0)
    thread.join()
    book = toys.directory / "slurm" / "jobs.jsonl"
    book.write_text(book.read_text().splitlines()[0] + "\n")  # as if killed before the number came
    heard = RecordedEvents()
    assert SlurmRunner(jobs=2).run(jobs, heard)
    assert [steps_of(job) for job in jobs] == [[1, 2, 3, 4, 5]] * 3
    assert [line[0] for line in heard.told].count("finished") == 3
    assert numbers(toys) == []  # nothing was handed in twice


def test_who_leaves_finds_all_done(here: SlurmHere, toys: Toys) -> None:
    toys.seconds = 0.2
    heard = RecordedEvents()
    jobs = toys.jobs(["1", "2"])
    thread = interrupt_when(lambda: heard.steps)
    assert not SlurmRunner(jobs=2).run(jobs, heard)
    thread.join()
    first, last = (line[1] for line in heard.told if line[0] == "says")
    assert first.startswith("In Slurm as job ") and first.endswith(": 2 points.")
    assert last.startswith("Leaving: ")
    while here.ask("squeue", "-h"):
        time.sleep(0.1)
    heard = RecordedEvents()
    assert SlurmRunner(jobs=2).run(jobs, heard)
    assert [steps_of(job) for job in jobs] == [[1, 2, 3, 4, 5]] * 2
    assert len(numbers(toys)) == 1


def test_a_second_signal_ends_what_runs_and_what_waits(here: SlurmHere, toys: Toys) -> None:
    toys.seconds = 0.3
    heard = RecordedEvents()
    jobs = toys.jobs(["1", "2", "3"])
    thread = interrupt_when(lambda: heard.steps, times=2)
    assert not SlurmRunner(jobs=2).run(jobs, heard)
    thread.join()
    assert ("stops",) in heard.told
    assert {line[0] for line in heard.told} == {"started", "says", "stops", "stopped"}
    while here.ask("squeue", "-h"):
        time.sleep(0.1)
    assert not any(job.is_done for job in jobs)
    assert not jobs[2].directory.exists()
    toys.seconds = 0.0
    assert SlurmRunner(jobs=3).run(jobs, RecordedEvents())
    assert [steps_of(job) for job in jobs] == [[1, 2, 3, 4, 5]] * 3
