"""Points as tasks of a Slurm array, on a cluster of one node: ends, signals, and who watches."""

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fidgpt.graph import ConfigError
from fidgpt.sweep import Job
from fidgpt.sweep.runners import slurm
from fidgpt.sweep.runners import slurm as slurm_attempt
from fidgpt.sweep.runners.slurm import SlurmRunner
from fidgpt.sweep.runners.slurm_jobs import SlurmJobs
from fidgpt.train.trackers.trackers import read_rows

from .conftest import NUM_STEPS, Toys
from .slurm_here import NoSlurmError, SlurmHere
from .test_local import HeardOfJobs, RecordedEvents, interrupt_when

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
    monkeypatch.setattr(slurm, "_PAUSE", 0.05)
    monkeypatch.setattr(slurm_attempt, "_ASK", 0.2)
    monkeypatch.setattr(slurm_attempt, "_GRACE", 1.0)
    monkeypatch.setattr(slurm_attempt, "_PATIENCE", 1.0)
    return cluster


def when(condition: Callable[[], object], action: Callable[[], object]) -> threading.Thread:
    """Does something as soon as a condition holds."""

    def wait() -> None:
        while not condition():
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def steps_of(job: Job) -> list[int]:
    """The steps of a run, in the order in which they were made."""
    return [row["step"] for row in read_rows(job.directory / "metrics.jsonl")]


def numbers(toys: Toys) -> list[str]:
    """What Slurm calls the arrays of a sweep, in the order in which they were handed in."""
    lines = (toys.directory / "slurm" / "jobs.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row["number"] for row in rows if row["number"]]


def test_points_are_one_array_and_so_many_run_at_a_time(here: SlurmHere, toys: Toys) -> None:
    toys.seconds = 0.1
    heard, at_a_time = HeardOfJobs(), [0]
    jobs = toys.jobs(["1", "2", "3", "4"])

    def count() -> None:
        said = here.ask("squeue", "--array", "--states=RUNNING", "-h")
        at_a_time.append(len(said.splitlines()))

    heard.tick = count
    assert SlurmRunner(jobs=2).run(jobs, heard)
    assert [job.result() for job in jobs] == [{"step": NUM_STEPS, "loss": 1 / NUM_STEPS}] * 4
    assert heard.steps == {f"seed={i}": [1, 2, 3, 4, 5] for i in range(1, 5)}
    assert len(numbers(toys)) == 1
    assert max(at_a_time) == 2


def test_more_points_than_an_array_may_have_are_several(
    here: SlurmHere, toys: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlurmJobs, "largest", lambda self: 2)
    jobs = toys.jobs(["1", "2", "3", "4"])
    assert SlurmRunner(jobs=2).run(jobs, RecordedEvents())
    assert all(job.is_done for job in jobs)
    rows = map(json.loads, (toys.directory / "slurm" / "jobs.jsonl").read_text().splitlines())
    assert max(len(row["points"]) for row in rows) == 2


def test_one_that_fails_is_tried_again_and_says_why(here: SlurmHere, toys: Toys) -> None:
    heard = HeardOfJobs()
    first, second = toys.jobs(["1", "2"])
    toys.fail(first, times=1, words="error: the disk is on fire,\n  call somebody.")
    toys.fail(second, times=9, words="Traceback\nerror: step 3 diverged: loss is nan.")
    assert SlurmRunner(jobs=2, retries=1).run([first, second], heard)
    told = [line for line in heard.told if line[0] != "started"]
    assert sorted(line for line in told if line[1] == "seed=1") == [
        ("failed", "seed=1", "the disk is on fire, call somebody.", "True"),
        ("finished", "seed=1", "", "False"),
    ]
    words = "step 3 diverged: loss is nan."
    assert [line for line in told if line[1] == "seed=2"] == [
        ("diverged", "seed=2", words, "True"),
        ("diverged", "seed=2", words, "False"),
    ]
    assert steps_of(first) == [1, 2, 3, 4, 5]


def test_a_job_that_somebody_cancels_is_not_tried_again(here: SlurmHere, toys: Toys) -> None:
    toys.seconds = 0.3
    heard = HeardOfJobs()
    jobs = toys.jobs(["1", "2"])
    thread = when(
        lambda: "seed=1" in heard.steps, lambda: here.ask("scancel", f"{numbers(toys)[0]}_0")
    )
    assert not SlurmRunner(jobs=1, retries=3).run(jobs, heard)
    thread.join()
    told = [line for line in heard.told if line[0] != "started"]
    assert told == [
        ("stopped", "seed=1", "cancelled in Slurm", "False"),
        ("finished", "seed=2", "", "False"),
    ]
    assert SlurmRunner().run(jobs[:1], RecordedEvents())
    assert steps_of(jobs[0]) == [1, 2, 3, 4, 5]


def test_a_search_asks_for_jobs_as_places_are_free(here: SlurmHere, toys: Toys) -> None:
    heard = HeardOfJobs()
    under_way: list[int] = []
    jobs = toys.jobs(["1", "2", "3", "4"])

    def chosen() -> Iterator[Job]:
        for i, job in enumerate(jobs):
            under_way.append(i - sum(line[0] == "finished" for line in heard.told))
            yield job

    assert SlurmRunner(jobs=2).run(chosen(), heard)
    assert all(job.is_done for job in jobs)
    assert under_way[:2] == [0, 1] and max(under_way) == 1


def test_one_that_is_not_worth_it_ends_early(here: SlurmHere, toys: Toys) -> None:
    toys.seconds = 0.2
    heard, runner = HeardOfJobs(), SlurmRunner(retries=1)
    (job,) = toys.jobs(["1"])
    heard.tick = lambda: runner.end_early(job) if heard.steps else None
    assert runner.run([job], heard)
    assert heard.told == [("started", "seed=1"), ("stopped early", "seed=1", "", "False")]
    assert not job.is_done


def test_what_slurm_does_not_take_is_a_mistake_of_the_user(here: SlurmHere, toys: Toys) -> None:
    with pytest.raises(
        ConfigError,
        match=r"Invalid partition name specified\. They ask for partition=nowhere, time=60",
    ):
        SlurmRunner(partition="nowhere").run(toys.jobs(["1"]), RecordedEvents())


def test_what_slurm_holds_back_is_said(here: SlurmHere, toys: Toys) -> None:
    heard = RecordedEvents()
    thread = interrupt_when(lambda: len(heard.told) > 1, times=2)
    assert not SlurmRunner(partition="closed").run(toys.jobs(["1"]), heard)
    thread.join()
    assert heard.told[1] == ("says", "Slurm holds seed=1 back: PartitionDown.")


_WHO = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
(folder / os.environ["RANK"]).write_text(" ".join(os.environ[name] for name in names))
(folder / ("port" + os.environ["RANK"])).write_text(os.environ["MASTER_PORT"])
"""


def test_the_processes_of_a_point_know_each_other(
    here: SlurmHere, toys: Toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    who = property(lambda job: [sys.executable, "-c", _WHO, str(job.directory)])
    monkeypatch.setattr(Job, "beginning", who)
    (job,) = toys.jobs(["1"])
    assert SlurmRunner(processes=2, cpus=3).run([job], RecordedEvents())
    texts = [(job.directory / rank).read_text() for rank in ("0", "1")]
    host = os.uname().nodename
    assert texts == [f"0 2 0 2 {host} 3", f"1 2 1 2 {host} 3"]
    ports = {(job.directory / f"port{rank}").read_text() for rank in (0, 1)}
    assert len(ports) == 1
