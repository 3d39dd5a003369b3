"""Points that Slurm takes from their nodes go on from where they were, with the same numbers."""

# ruff: noqa: F811  (a fixture is a parameter of the same name)

import io
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from rich.console import Console

from fidgpt.sweep import LocalRunner, Sweep, axis
from fidgpt.sweep.runners.slurm import SlurmRunner
from fidgpt.train.trackers.trackers import read_rows, reproducible

from .conftest import Toys
from .slurm_here import SlurmHere
from .test_local import HeardOfJobs
from .test_slurm import cluster, here, numbers, steps_of, when  # noqa: F401

pytestmark = pytest.mark.xdist_group("processes")


def test_what_is_taken_from_its_node_goes_back_to_the_queue(here: SlurmHere, toys: Toys) -> None:
    """By the signal that comes before its time is over, by one before a preemption, by force."""
    toys.seconds = 0.3
    heard = HeardOfJobs()
    jobs = toys.jobs(["1", "2", "3"])

    def take() -> None:
        (number,) = numbers(toys)
        here.ask("scancel", "--signal=USR1", f"{number}_0")
        here.ask("scancel", "--signal=TERM", f"{number}_1")
        here.ask("scontrol", "requeue", f"{number}_2")
        while here.ask("squeue", "--states=PENDING", "--array", "-h", "-o%i").count("_") < 3:
            time.sleep(0.05)
        here.hurry(number)

    thread = when(lambda: len(heard.steps) == 3, take)
    assert SlurmRunner(jobs=3).run(jobs, heard)
    thread.join()
    assert [steps_of(job) for job in jobs] == [[1, 2, 3, 4, 5]] * 3
    assert sorted(line[0] for line in heard.told) == ["finished"] * 3 + ["started"] * 3
    assert len(numbers(toys)) == 1
    records = [json.loads(path.read_text()) for path in records_of(toys)]
    assert [record["start"] for record in records] == [1, 1, 1]


def test_what_does_not_come_back_from_the_queue_is_tried_again(
    here: SlurmHere, toys: Toys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it was put back, and could not be started there."""
    toys.seconds = 0.3
    heard = HeardOfJobs()
    script = tmp_path / "bin" / "scontrol"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\n[ "$1" = requeue ] || exec {shutil.which("scontrol")} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=os.pathsep)
    thread = when(lambda: heard.steps, lambda: here.ask("scancel", "--signal=USR1", *numbers(toys)))
    (job,) = toys.jobs(["1"])
    assert SlurmRunner(retries=0).run([job], heard)
    thread.join()
    assert steps_of(job) == [1, 2, 3, 4, 5]
    told = [line for line in heard.told if line[0] != "started"]
    words = "went back to the queue, from where Slurm did not start it again"
    assert told == [("failed", "seed=1", words, "True"), ("finished", "seed=1", "", "False")]
    assert len(numbers(toys)) == 2


def records_of(toys: Toys) -> list[Path]:
    return sorted((toys.directory / "slurm" / "records").glob("*.json"))


def test_a_node_that_dies_costs_no_point(here: SlurmHere, toys: Toys) -> None:
    toys.seconds = 0.3
    heard = HeardOfJobs()
    killed: list[bool] = []
    jobs = toys.jobs(["1", "2"])

    def kill_once() -> None:
        if len(heard.steps) == 2 and not killed:
            killed.append(True)
            here.kill_node()
            here.start_node()
        if killed and "BeginTime" in here.ask("squeue", "-h", "-o%r"):
            here.hurry(numbers(toys)[0])

    heard.tick = kill_once
    assert SlurmRunner(jobs=2, retries=3).run(jobs, heard)
    assert [sorted(set(steps_of(job))) for job in jobs] == [[1, 2, 3, 4, 5]] * 2
    assert [line[0] for line in heard.told].count("finished") == 2


RUN = ["config:debug", "set:samples=None", "set:num_steps=40", "set:evaluators={}"]


def test_a_run_is_the_same_in_slurm_as_here(
    here: SlurmHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it was taken from its node on the way."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rates = axis("tag:LearningRate=1e-3")
    local = Sweep(*RUN, rates, directory=tmp_path / "local")
    there = Sweep(*RUN, rates, directory=tmp_path / "slurm")
    metrics = there.jobs[0].directory / "metrics.jsonl"

    def take() -> None:
        number = json.loads(
            (there.directory / "slurm" / "jobs.jsonl").read_text().splitlines()[-1]
        )["number"]
        here.ask("scancel", "--signal=USR1", number)
        while "PENDING" not in here.ask("squeue", "--array", "-h", "-o%T"):
            time.sleep(0.05)
        here.hurry(number)

    thread = when(lambda: metrics.exists() and metrics.stat().st_size, take)
    console = Console(file=io.StringIO())
    results = there.run(runner=SlurmRunner(), console=console)
    thread.join()
    assert [row["status"] for row in results] == ["finished"], [*results]
    local.run(runner=LocalRunner(), console=console)
    for one, other in zip(local.jobs, there.jobs, strict=True):
        rows = [
            [reproducible(row) for row in read_rows(job.directory / "metrics.jsonl")]
            for job in (one, other)
        ]
        assert rows[0] == rows[1]
        assert len(rows[0]) == 40
    record = min((there.directory / "slurm" / "records").glob("*-0.json"))
    assert json.loads(record.read_text())["start"] == 1
