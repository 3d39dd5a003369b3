"""Points in processes: failures, retries, signals, foreign jobs, shares of a machine, keepers."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from fidgpt.sweep import Ending, Job, LocalRunner, Runner, Sweep, axis
from fidgpt.sweep.runners import keeper
from fidgpt.sweep.runners.jobs import shares, visible_devices

from .conftest import NUM_STEPS, Toys, steps_of


class RecordedEvents:
    """Records all events; `lines` leaves out the runner's log unless `keep_texts`.

    Args:
      keep_texts: whether to keep it.
    """

    def __init__(self, *, keep_texts: bool = True) -> None:
        self.lines: list[tuple[str, ...]] = []
        self.steps: dict[str, list[int]] = {}
        self._keep_texts = keep_texts

    def started(self, job: Job) -> None:
        self.lines.append(("started", job.point.name))

    def progressed(self, job: Job, row: Mapping[str, Any]) -> None:
        self.steps.setdefault(job.point.name, []).append(row["step"])

    def ended(self, job: Job, ending: Ending, *, again: bool) -> None:
        self.lines.append((ending.status, job.point.name, ending.last_words, str(again)))

    def waits(self, job: Job) -> None:
        self.lines.append(("waits", job.point.name))

    def stops(self) -> None:
        self.lines.append(("stops",))

    def log(self, text: str) -> None:
        if self._keep_texts:
            self.lines.append(("log", text))

    def tick(self) -> None:
        pass

    def count(self, status: str) -> int:
        """Return how many lines begin with a status."""
        return [line[0] for line in self.lines].count(status)


def when(condition: Any, action: Any) -> threading.Thread:
    """Does something in a thread as soon as a condition holds."""

    def wait() -> None:
        while not condition():
            time.sleep(0.01)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def interrupt_when(condition: Any, *, times: int = 1) -> threading.Thread:
    """Sends this process Ctrl-C as soon as a condition holds."""

    def interrupt() -> None:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    return when(condition, interrupt)


def check_failures_are_retried(runner: Runner, toys: Toys) -> None:
    """One job fails once and one diverges twice, of three that a runner tries twice."""
    events = RecordedEvents(keep_texts=False)
    jobs = toys.jobs(["1", "2", "3"])
    toys.fail(jobs[0], times=1, words="error: the disk is on fire,\n  buy a new one.")
    toys.fail(jobs[1], times=9, words="Traceback\nerror: step 3 diverged: loss is nan.")
    assert runner.run(jobs, events)
    ends = [line for line in events.lines if line[0] != "started"]
    fire, wild = "the disk is on fire, buy a new one.", "step 3 diverged: loss is nan."
    assert sorted(ends) == [
        *(("diverged", "seed=2", wild, again) for again in ("False", "True")),
        ("failed", "seed=1", fire, "True"),
        *(("finished", name, "", "False") for name in ("seed=1", "seed=3")),
    ]
    assert [job.is_done for job in jobs] == [True, False, True]
    assert jobs[0].result() == {"step": NUM_STEPS, "loss": 1 / NUM_STEPS}
    assert [len(steps_of(job)) for job in jobs] == [5, 2, 5]  # so each resumed where it was


@pytest.mark.slow
def test_failures_are_retried_side_by_side(toys: Toys) -> None:
    check_failures_are_retried(LocalRunner(jobs=2, retries=1), toys)


def test_a_killed_process_is_reported_with_its_signal(toys: Toys) -> None:
    toys.seconds = 0.1
    events = RecordedEvents()
    (job,) = toys.jobs(["1"])

    thread = when(
        lambda: events.steps,
        lambda: os.kill(int((job.directory / "pid").read_text()), signal.SIGKILL),
    )
    assert LocalRunner(retries=1).run([job], events)
    thread.join()
    assert events.lines[1] == ("failed", "seed=1", "killed by SIGKILL", "True")
    assert events.lines[-1][0] == "finished"


@pytest.mark.slow
def test_an_interrupted_sweep_resumes(toys: Toys) -> None:
    toys.seconds = 0.1
    events = RecordedEvents()
    jobs = toys.jobs(["1", "2", "3"])
    thread = interrupt_when(lambda: events.steps.get("seed=2"))
    assert not LocalRunner(jobs=2).run(jobs, events)
    thread.join()
    assert ("stops",) in events.lines
    assert ("started", "seed=3") not in events.lines
    assert {line[0] for line in events.lines} == {"started", "stops", "stopped"}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    toys.seconds = 0.0
    assert LocalRunner().run([job for job in jobs if not job.is_done], events)
    assert [steps_of(job) for job in jobs] == [[1, 2, 3, 4, 5]] * 3  # so no step was done twice


def test_a_job_of_another_process_is_waited_for(toys: Toys) -> None:
    toys.seconds = 0.2
    events = RecordedEvents()
    first, second = toys.jobs(["1", "2"])
    with first.opened_log() as log:
        other = subprocess.Popen(first.command, stdout=log)
    assert LocalRunner().run([first, second], events)
    assert other.wait() == 0
    assert events.lines[:2] == [("waits", "seed=1"), ("started", "seed=2")]
    assert steps_of(first) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("num_jobs", "devices", "environment", "expected"),
    [
        (1, [], {}, [{}]),
        (2, [], {}, [{"OMP_NUM_THREADS": "4"}] * 2),
        (3, [], {"OMP_NUM_THREADS": "5"}, [{}] * 3),
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert shares(num_jobs, devices=devices, num_cores=8) == expected
    for text, names in {"2, GPU-abc": ["2", "GPU-abc"], "": []}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert visible_devices() == names


def test_sizes_of_meshes_are_counted(tmp_path: Path) -> None:
    given = "config:debug", "fiddler:use_mesh(tensor=1)", axis("tag:TensorSize=1,2")
    points = Sweep(*given, directory=tmp_path).points
    assert [point.cost.num_processes for point in points] == [1, 2]


STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"


def keep(log: Path, *command: str, patience: float = 60) -> Popen[bytes]:
    """A keeper started as a worker does it, whose signals are blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with log.open("ab") as file:
            kept = Popen(
                [sys.executable, "-I", keeper.__file__, str(patience), *command],
                stdin=PIPE,
                stdout=PIPE,
                stderr=file,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert kept.wait() == 0
    return kept


def status_of(kept: Popen[bytes]) -> int:
    """How its process ended; waits for it."""
    assert kept.stdin is not None and kept.stdout is not None
    with kept.stdin, kept.stdout:
        return int(kept.stdout.read())


def wait_for_words(log: Path) -> None:
    deadline = time.monotonic() + 30
    while not log.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_without_its_owner_a_process_is_terminated_and_then_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    kept = keep(log, sys.executable, "-c", f"{STUBBORN}; time.sleep(60)", patience=0.3)
    wait_for_words(log)
    assert kept.stdin is not None and kept.stdout is not None
    kept.stdin.close()
    with kept.stdout:
        assert kept.stdout.read() == str(-signal.SIGKILL).encode()


def test_a_process_writes_to_the_log_and_gets_blocked_signals(tmp_path: Path) -> None:
    log = tmp_path / "log"
    kept = keep(log, sys.executable, "-c", "import sys; print('words'); sys.exit('an error')")
    assert status_of(kept) == 1
    assert sorted(log.read_text().splitlines()) == ["an error", "words"]
    log.unlink()
    kept = keep(log, "sh", "-c", "echo 1; exec sleep 60")
    wait_for_words(log)
    assert kept.stdin is not None
    os.write(kept.stdin.fileno(), bytes([signal.SIGINT]))
    assert status_of(kept) == -signal.SIGINT
