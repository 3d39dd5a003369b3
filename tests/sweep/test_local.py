"""Points in processes: failures, retries, signals, what others run, and the shares of a machine."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from fidgpt.sweep import Ending, Job, LocalRunner
from fidgpt.sweep.runners.attempt import Exit, State
from fidgpt.sweep.runners.local import shares_of, visible_devices
from fidgpt.sweep.runners.work import Work

from .conftest import NUM_STEPS, Toys


class RecordedEvents:
    """Writes down all that it hears."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []
        self.steps: dict[str, list[int]] = {}

    def started(self, job: Job) -> None:
        self.told.append(("started", job.point.name))

    def progressed(self, job: Job, row: Mapping[str, Any]) -> None:
        self.steps.setdefault(job.point.name, []).append(row["step"])

    def ended(self, job: Job, ending: Ending, *, again: bool) -> None:
        self.told.append((ending.status, job.point.name, ending.last_words, str(again)))

    def waits(self, job: Job) -> None:
        self.told.append(("waits", job.point.name))

    def stops(self) -> None:
        self.told.append(("stops",))

    def say(self, text: str) -> None:
        self.told.append(("says", text))

    def tick(self) -> None:
        pass


class HeardOfJobs(RecordedEvents):
    """Writes down what becomes of jobs, and nothing that a runner says of itself."""

    def say(self, text: str) -> None:
        pass


def interrupt_when(condition: Any, *, times: int = 1) -> threading.Thread:
    """Sends this process Ctrl-C as soon as a condition holds."""

    def wait() -> None:
        while not condition():
            time.sleep(0.01)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_jobs_run_one_after_the_other(toys: Toys) -> None:
    heard = RecordedEvents()
    jobs = toys.jobs(["1", "2"])
    assert LocalRunner().run(jobs, heard)
    assert heard.told == [
        ("started", "seed=1"),
        ("finished", "seed=1", "", "False"),
        ("started", "seed=2"),
        ("finished", "seed=2", "", "False"),
    ]
    assert heard.steps == {"seed=1": [1, 2, 3, 4, 5], "seed=2": [1, 2, 3, 4, 5]}
    assert [job.result() for job in jobs] == [{"step": NUM_STEPS, "loss": 1 / NUM_STEPS}] * 2


def test_jobs_run_side_by_side(toys: Toys) -> None:
    toys.seconds = 0.1
    heard = RecordedEvents()
    assert LocalRunner(jobs=2).run(toys.jobs(["1", "2", "3"]), heard)
    assert heard.told[:2] == [("started", "seed=1"), ("started", "seed=2")]
    assert sorted(line[0] for line in heard.told) == ["finished"] * 3 + ["started"] * 3


def test_one_that_fails_stops_no_other_and_is_tried_again_as_told(toys: Toys) -> None:
    heard = RecordedEvents()
    first, second = toys.jobs(["1", "2"])
    toys.fail(first, times=3, words="error: the disk is on fire,\n  call somebody.")
    assert LocalRunner(retries=1).run([first, second], heard)
    words = "the disk is on fire, call somebody."
    assert heard.told == [
        ("started", "seed=1"),
        ("failed", "seed=1", words, "True"),
        ("started", "seed=2"),
        ("finished", "seed=2", "", "False"),
        ("started", "seed=1"),
        ("failed", "seed=1", words, "False"),
    ]
    assert not first.is_done
    assert LocalRunner(retries=1).run([first], heard)
    assert first.is_done
    assert [line for line in heard.told[-2:] if line[0] == "finished"]


def test_a_point_that_diverged_is_marked(toys: Toys) -> None:
    heard = RecordedEvents()
    (job,) = toys.jobs(["1"])
    toys.fail(job, times=1, words="Traceback\nerror: step 3 diverged: loss is nan.")
    LocalRunner().run([job], heard)
    assert heard.told[-1] == ("diverged", "seed=1", "step 3 diverged: loss is nan.", "False")


def test_one_that_was_killed_says_by_what(toys: Toys) -> None:
    toys.seconds = 0.1
    heard = RecordedEvents()
    (job,) = toys.jobs(["1"])

    def kill() -> None:
        while not heard.steps:
            time.sleep(0.01)
        os.kill(int((job.directory / "pid").read_text()), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    assert LocalRunner(retries=1).run([job], heard)
    thread.join()
    assert heard.told[1] == ("failed", "seed=1", "killed by SIGKILL", "True")
    assert heard.told[-1][0] == "finished"


def test_an_interrupted_sweep_goes_on_where_it_was(toys: Toys) -> None:
    toys.seconds = 0.1
    heard = RecordedEvents()
    jobs = toys.jobs(["1", "2", "3"])
    thread = interrupt_when(lambda: heard.steps.get("seed=2"))
    assert not LocalRunner(jobs=2).run(jobs, heard)
    thread.join()
    assert ("stops",) in heard.told
    assert ("started", "seed=3") not in heard.told
    assert {line[0] for line in heard.told} == {"started", "stops", "stopped"}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    toys.seconds = 0.0
    assert LocalRunner().run([job for job in jobs if not job.is_done], heard)
    rows = [(job.directory / "metrics.jsonl").read_text().splitlines() for job in jobs]
    assert [len(lines) for lines in rows] == [NUM_STEPS] * 3  # so no step was done twice


def test_two_signals_at_once_are_two(toys: Toys) -> None:
    class Busy:
        """An attempt that ends at the second signal alone, and is told both while one looks."""

        sent: ClassVar[list[int]] = []

        def look(self) -> State:
            if not self.sent:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            return "running" if len(self.sent) < 2 else Exit(130)

        def send(self, number: signal.Signals) -> None:
            self.sent.append(number)

    heard = RecordedEvents()
    work = Work(iter(toys.jobs(["1"])), lambda *_: Busy(), num_places=1, retries=0, events=heard)
    assert not work.run(pause=0.01)
    assert Busy.sent == [signal.SIGINT, signal.SIGINT]
    assert heard.told[1:] == [
        ("stops",),
        ("says", "Ending at once what still runs."),
        ("stopped", "seed=1", "", "False"),
    ]


def test_what_another_process_runs_is_waited_for(toys: Toys) -> None:
    toys.seconds = 0.2
    heard = RecordedEvents()
    first, second = toys.jobs(["1", "2"])
    with first.opened_log() as log:
        other = subprocess.Popen(first.command, stdout=log)
    assert LocalRunner().run([first, second], heard)
    assert other.wait() == 0
    assert heard.told[:2] == [("waits", "seed=1"), ("started", "seed=2")]
    assert len((first.directory / "metrics.jsonl").read_text().splitlines()) == NUM_STEPS


def test_what_another_process_finished_is_not_started(toys: Toys) -> None:
    heard = RecordedEvents()
    (job,) = toys.jobs(["1"])
    LocalRunner().run([job], heard)
    assert LocalRunner().run([job], heard)
    assert [line[0] for line in heard.told] == ["started", "finished", "finished"]


@pytest.mark.parametrize(
    ("num_jobs", "devices", "environment", "expected"),
    [
        (1, [], {}, [{}]),
        (2, [], {}, [{"OMP_NUM_THREADS": "4"}] * 2),
        (3, [], {"OMP_NUM_THREADS": "5"}, [{}] * 3),
        (16, ["0"], {}, [{"OMP_NUM_THREADS": "1"}] * 16),
        (1, ["0", "1"], {}, [{"CUDA_VISIBLE_DEVICES": "0"}]),
        (
            3,
            ["4", "7"],
            {"OMP_NUM_THREADS": "1"},
            [{"CUDA_VISIBLE_DEVICES": one} for one in ("4", "7", "4")],
        ),
    ],
)
def test_a_machine_is_shared(
    num_jobs: int,
    devices: list[str],
    environment: dict[str, str],
    expected: list[dict[str, str]],
) -> None:
    assert shares_of(num_jobs, devices=devices, num_cores=8, environment=environment) == expected


def test_only_visible_devices_are_dealt_out() -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "2, GPU-abc"}) == ["2", "GPU-abc"]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}) == []
