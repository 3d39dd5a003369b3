"""Points as tasks of a Slurm array, on a cluster of one node: ends, signals, requeues, watchers."""

import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from fidgpt.sweep import Job, LocalRunner, Sweep, axis
from fidgpt.sweep.runners.slurm import SlurmRunner

from .conftest import NUM_STEPS, Toys, rows_of, steps_of
from .slurm_here import NoSlurmError, SlurmHere
from .test_local import RecordedEvents, check_failures_are_retried, interrupt_when, when

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmHere]:
    """One cluster for all tests of the file."""
    pytest.importorskip("submitit")
    folder = Path(tempfile.mkdtemp(prefix="fidgpt-slurm-"))  # not below pytest's, which is closed
    folder.chmod(0o755)
    made = SlurmHere(folder)
    try:
        made.up()
        yield made
    except NoSlurmError as error:
        pytest.skip(str(error))
    finally:
        made.down()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def here(cluster: SlurmHere, monkeypatch: pytest.MonkeyPatch) -> SlurmHere:
    """The cluster, for all commands of this test, which is looked at more often than one should."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    for name, seconds in {"pause": 0.05, "interval": 0.2, "grace": 1.0, "patience": 1.0}.items():
        monkeypatch.setattr(SlurmRunner, name, seconds)
    return cluster


def arrays(sweep: Toys | Sweep) -> list[str]:
    """The names of the arrays of a sweep, in the order in which they were submitted."""
    lines = (sweep.directory / "slurm" / "jobs.jsonl").read_text().splitlines()
    return [json.loads(line)["name"] for line in lines]


def number(here: SlurmHere, sweep: Toys | Sweep) -> str:
    """The number of the newest array of a sweep."""
    return here.ask("squeue", "-h", "-o%F", f"--name={arrays(sweep)[-1]}").split()[0]


def test_points_are_one_array_and_so_many_run_at_a_time(here: SlurmHere, toys: Toys) -> None:
    toys.seconds = 0.1
    events, at_a_time = RecordedEvents(keep_texts=False), [0]
    jobs = toys.jobs(["1", "2", "3", "4"])

    def count() -> None:
        output = here.ask("squeue", "--array", "--states=RUNNING", "-h")
        at_a_time.append(len(output.splitlines()))

    events.tick = count
    assert SlurmRunner(jobs=2).run(jobs, events)
    assert [job.result() for job in jobs] == [{"step": NUM_STEPS, "loss": 1 / NUM_STEPS}] * 4
    assert events.steps == {f"seed={i}": [1, 2, 3, 4, 5] for i in range(1, 5)}
    assert len(arrays(toys)) == 1
    assert max(at_a_time) == 2


def test_failures_are_retried(here: SlurmHere, toys: Toys) -> None:
    check_failures_are_retried(SlurmRunner(jobs=2, retries=1), toys)


def test_a_cancelled_job_is_not_retried(here: SlurmHere, toys: Toys) -> None:
    toys.seconds = 0.3
    events = RecordedEvents(keep_texts=False)
    jobs = toys.jobs(["1", "2"])
    thread = when(
        lambda: "seed=1" in events.steps,
        lambda: here.ask("scancel", f"{number(here, toys)}_0"),
    )
    assert not SlurmRunner(jobs=1, retries=3).run(jobs, events)
    thread.join()
    lines = [line for line in events.lines if line[0] != "started"]
    assert lines == [
        ("stopped", "seed=1", "cancelled in Slurm", "False"),
        ("finished", "seed=2", "", "False"),
    ]
    assert SlurmRunner().run(jobs[:1], RecordedEvents())
    assert steps_of(jobs[0]) == [1, 2, 3, 4, 5]


def in_a_process(runner: SlurmRunner, jobs: Sequence[Job]) -> int:
    """Runs jobs in a process of their own; returns its number."""
    pid = os.fork()
    if pid == 0:
        try:
            runner.run(jobs, RecordedEvents())
        finally:
            os._exit(0)
    return pid


def test_a_killed_sweep_follows_its_jobs_again(here: SlurmHere, toys: Toys) -> None:
    toys.seconds = 0.3
    jobs = toys.jobs(["1", "2", "3"])
    pid = in_a_process(SlurmRunner(jobs=2), jobs)
    thread = when(lambda: jobs[0].directory.exists(), lambda: os.kill(pid, signal.SIGKILL))
    os.waitpid(pid, 0)
    thread.join()
    events = RecordedEvents()
    assert SlurmRunner(jobs=2).run(jobs, events)
    assert [steps_of(job) for job in jobs] == [[1, 2, 3, 4, 5]] * 3
    assert events.count("finished") == 3
    assert len(arrays(toys)) == 1  # nothing was submitted twice


def test_jobs_finish_after_the_user_has_left(here: SlurmHere, toys: Toys) -> None:
    toys.seconds = 0.2
    events = RecordedEvents()
    jobs = toys.jobs(["1", "2"])
    thread = interrupt_when(lambda: events.steps)
    assert not SlurmRunner(jobs=2).run(jobs, events)
    thread.join()
    first, last = (line[1] for line in events.lines if line[0] == "log")
    assert first.startswith("In Slurm as job ") and first.endswith(": 2 points.")
    assert last.startswith("Detaching: ")
    while here.ask("squeue", "-h"):
        time.sleep(0.1)
    events = RecordedEvents()
    assert SlurmRunner(jobs=2).run(jobs, events)
    assert [steps_of(job) for job in jobs] == [[1, 2, 3, 4, 5]] * 2
    assert len(arrays(toys)) == 1


def test_a_second_signal_ends_running_and_waiting_jobs(here: SlurmHere, toys: Toys) -> None:
    toys.seconds = 0.3
    events = RecordedEvents()
    jobs = toys.jobs(["1", "2", "3"])
    thread = interrupt_when(lambda: events.steps, times=2)
    assert not SlurmRunner(jobs=2).run(jobs, events)
    thread.join()
    assert ("stops",) in events.lines
    assert {line[0] for line in events.lines} == {"started", "log", "stops", "stopped"}
    while here.ask("squeue", "-h"):
        time.sleep(0.1)
    assert not any(job.is_done for job in jobs)
    assert not jobs[2].directory.exists()
    toys.seconds = 0.0
    assert SlurmRunner(jobs=3).run(jobs, RecordedEvents())
    assert [steps_of(job) for job in jobs] == [[1, 2, 3, 4, 5]] * 3


def test_a_preempted_job_returns_to_the_queue(here: SlurmHere, toys: Toys) -> None:
    """By the signal that comes before its time is over, by one before a preemption, by force."""
    toys.seconds = 0.3
    events = RecordedEvents(keep_texts=False)
    jobs = toys.jobs(["1", "2", "3"])

    def take() -> None:
        array = number(here, toys)
        here.ask("scancel", "--signal=USR1", f"{array}_0")
        here.ask("scancel", "--signal=TERM", f"{array}_1")
        here.ask("scontrol", "requeue", f"{array}_2")
        while here.ask("squeue", "--states=PENDING", "--array", "-h", "-o%i").count("_") < 3:
            time.sleep(0.05)
        here.hurry(array)

    thread = when(lambda: len(events.steps) == 3, take)
    assert SlurmRunner(jobs=3).run(jobs, events)
    thread.join()
    assert [steps_of(job) for job in jobs] == [[1, 2, 3, 4, 5]] * 3
    assert sorted(line[0] for line in events.lines) == ["finished"] * 3 + ["started"] * 3
    assert len(arrays(toys)) == 1
    records = [json.loads(path.read_text()) for path in records_of(toys)]
    assert [record["start"] for record in records] == [1, 1, 1]


def records_of(toys: Toys) -> list[Path]:
    return sorted((toys.directory / "slurm" / "records").glob("*.json"))


def test_a_node_that_dies_costs_no_point(here: SlurmHere, toys: Toys) -> None:
    toys.seconds = 0.3
    events = RecordedEvents(keep_texts=False)
    killed: list[bool] = []
    jobs = toys.jobs(["1", "2"])

    def kill_once() -> None:
        if len(events.steps) == 2 and not killed:
            killed.append(True)
            here.kill_node()
            here.start_node()
        if killed and "BeginTime" in here.ask("squeue", "-h", "-o%r"):
            here.hurry(number(here, toys))

    events.tick = kill_once
    assert SlurmRunner(jobs=2, retries=3).run(jobs, events)
    assert [sorted(set(steps_of(job))) for job in jobs] == [[1, 2, 3, 4, 5]] * 2
    assert events.count("finished") == 2


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
        array = number(here, there)
        here.ask("scancel", "--signal=USR1", array)
        while "PENDING" not in here.ask("squeue", "--array", "-h", "-o%T"):
            time.sleep(0.05)
        here.hurry(array)

    thread = when(lambda: metrics.exists() and metrics.stat().st_size, take)
    console = Console(file=io.StringIO())
    results = there.run(runner=SlurmRunner(), console=console)
    thread.join()
    assert [row["status"] for row in results] == ["finished"], [*results]
    local.run(runner=LocalRunner(), console=console)
    one, other = (rows_of(sweep.jobs[0].directory) for sweep in (local, there))
    assert one == other and len(one) == 40
    record = min((there.directory / "slurm" / "records").glob("*-0.json"))
    assert json.loads(record.read_text())["start"] == 1


_WHO = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
(folder / os.environ["RANK"]).write_text(" ".join(os.environ[name] for name in names))
(folder / ("port" + os.environ["RANK"])).write_text(os.environ["MASTER_PORT"])
while not (folder / "port1").exists():  # the job is over when rank 0 is
    time.sleep(0.05)
"""


def test_processes_have_ranks(here: SlurmHere, toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    who = property(lambda job: [sys.executable, "-c", _WHO, str(job.directory)])
    monkeypatch.setattr(Job, "start_command", who)
    (job,) = toys.jobs(["1"])
    assert SlurmRunner(processes=2, cpus=3).run([job], RecordedEvents())
    texts = [(job.directory / rank).read_text() for rank in ("0", "1")]
    host = os.uname().nodename
    assert texts == [f"0 2 0 2 {host} 3", f"1 2 1 2 {host} 3"]
    ports = {(job.directory / f"port{rank}").read_text() for rank in (0, 1)}
    assert len(ports) == 1
