"""Jobs: points as commands and directories; runners, of this machine too, and their scheduler."""

import contextlib
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from types import FrameType
from typing import IO, Any, ClassVar, Literal, Protocol

import torch

from fidgpt import forking
from fidgpt.files import lock, read_json, write_whole
from fidgpt.sweep.objective import reported_by
from fidgpt.sweep.points import Point
from fidgpt.sweep.runners.remote import Tail, failure_reason
from fidgpt.train.trackers.trackers import GROUP, Row

__all__ = ["Ending", "Events", "Job", "LocalRunner", "Runner", "jobs_of"]

_MARK = "done.json"
_DIVERGED = re.compile(r"step \d+ diverged")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_END = object()
_THREADS, _VISIBLE = "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"
_PRELOADED = ("fidgpt.cli.show", "fidgpt.cli.training")  # by points that are forked
_MAX_LOSSES = 5  # of machines in a row without progress: then the job may be what ends them


@dataclass(frozen=True)
class Job:
    """A point to train.

    Attributes:
      point: the point.
      directory: its run directory, which the command creates.
      log: the file for the command's output; locked while it runs.
      flags: of every command of the sweep.
    """

    point: Point
    directory: Path
    log: Path
    flags: tuple[str, ...] = ()

    @property
    def start_command(self) -> list[str]:
        """The command that trains the point from its first step."""
        directives = [f"--config={directive}" for directive in self.point.directives]
        # One value of an axis may be the base's value.
        return [*self._train, *directives, "--allow_noop", f"--run_dir={self.directory}"]

    @property
    def resume_command(self) -> list[str]:
        """The command that continues the point from its newest checkpoint."""
        return [*self._train, f"--resume={self.directory}"]

    @property
    def _train(self) -> list[str]:
        return [sys.executable, "-m", "fidgpt.cli.train", *self.flags]

    @property
    def command(self) -> list[str]:
        """The command that starts the point, or resumes it."""
        return self.resume_command if self.is_begun else self.start_command

    @property
    def local_command(self) -> list[str]:
        """The same, which starts all processes of its mesh on this machine."""
        if (number := self.point.cost.num_processes) == 1:
            return self.command
        launch = [sys.executable, "-m", "fidgpt.launch", "--standalone"]
        return [*launch, f"--nproc-per-node={number}", *self.command[1:]]

    @property
    def is_begun(self) -> bool:
        """Whether its directory holds a run."""
        return (self.directory / "config.json").exists()

    @property
    def is_done(self) -> bool:
        """Whether it has finished."""
        return (self.directory / _MARK).exists()

    def result(self) -> Row:
        """Return the last value of each metric of a run that has finished."""
        return read_json(self.directory / _MARK)

    def finish(self) -> Row:
        """Mark the run as finished; returns the last value of each metric."""
        if not self.is_done:
            text = json.dumps(reported_by(self.directory)) + "\n"
            write_whole(self.directory / _MARK, text)
        return self.result()

    @contextlib.contextmanager
    def opened_log(self) -> Iterator[IO[bytes] | None]:
        """Open and lock the log for a process; None if another process runs the job.

        The lock belongs to the open file: it is held until the last process that has it exits.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as file:
            yield file if lock(file) else None

    def environment(self, assigned: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of its process: this one's, and its share of a machine."""
        return {GROUP: self.directory.resolve().parent.name, **os.environ, **assigned}


def jobs_of(points: Sequence[Point], directory: Path, flags: Sequence[str] = ()) -> list[Job]:
    """Return the jobs of a sweep in `directory`, in the order of its points."""
    return [
        Job(point, directory / point.short, directory / "logs" / f"{point.short}.log", tuple(flags))
        for point in points
    ]


@dataclass(frozen=True)
class Ending:
    """How a process that trained a point ended.

    Attributes:
      status: finished, failed, diverged, stopped, or stopped early.
      last_words: why; "" if it finished.
    """

    status: str
    last_words: str = ""


class Events(Protocol):
    """Receives the events of a sweep."""

    def started(self, job: Job) -> None:
        """Handle the start of a process of the job."""

    def progressed(self, job: Job, row: Mapping[str, Any]) -> None:
        """Handle a new row of the job's metrics."""

    def ended(self, job: Job, ending: Ending, *, again: bool) -> None:
        """Handle the end of a process of the job; `again` if another one will be started."""

    def waits(self, job: Job) -> None:
        """Handle that another process runs the job, which is waited for."""

    def stops(self) -> None:
        """Handle a signal to stop: running jobs save and exit, and no more are started."""

    def log(self, text: str) -> None:
        """Show a line to the user."""

    def tick(self) -> None:
        """Handle that some time has passed."""


@dataclass(frozen=True)
class Exit:
    """How the processes of an attempt ended.

    Attributes:
      status: 0 if the run finished; else an exit status, or the negative number of a signal.
      reason: why it ended; "" if it finished.
      is_lost: whether its machine was lost, which is not the job's fault.
      is_cancelled: whether someone other than the sweep cancelled it.
    """

    status: int
    reason: str = ""
    is_lost: bool = False
    is_cancelled: bool = False


# Waits for a machine; another process runs the job; its processes run; they ended.
State = Literal["pending", "refused", "running"] | Exit


class Attempt(Protocol):
    """One attempt at a job."""

    def poll(self) -> State:
        """Return its state; a refusal and an end are returned once."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its processes; an attempt that waits for a machine is withdrawn."""


@dataclass(eq=False)
class _Task:
    """A job, its newest attempt, and what happened to it so far."""

    job: Job
    attempt: Attempt = field(init=False)
    tail: Tail = field(init=False)
    slot: int = 0
    step: int = 0
    is_started: bool = False
    ends_early: bool = False
    is_foreign: bool = False  # another process runs it
    retries: int = 0
    losses: int = 0  # of machines, since its last progress
    furthest: int = 0  # step


@dataclass
class Runner:
    """Runs jobs: the base class of engines, which implement `launch`.

    Attributes:
      jobs: points at a time.
      retries: how often a point that failed is retried, from its newest checkpoint.
    """

    jobs: int = 1
    retries: int = 0

    pause: ClassVar[float] = 0.2  # seconds between two polls
    # Seconds after the first signal in which a second one ends the jobs; without one, they are
    # left to the engine. With None, the first signal ends them.
    patience: ClassVar[float | None] = None

    def num_slots(self, jobs: Iterable[Job | None]) -> int:
        """Return the number of attempts at a time."""
        return self.jobs

    def launch(self, job: Job, log: IO[bytes], slot: int) -> Attempt:
        """Start an attempt, with the log, which is locked until this returns."""
        raise NotImplementedError

    def adopt(self, job: Job) -> Attempt | None:
        """Return the attempt at a job that an earlier sweep started and that is still active."""
        return None

    def run(self, jobs: Iterable[Job | None], events: Events) -> bool:
        """Run all jobs; returns False if a signal stopped that.

        Each job is taken when there is a slot for it, so that earlier results may decide which one
        it is; after a None, the next one is taken at the next poll.

        Ctrl-C, SIGTERM and SIGHUP let each run save and exit; a second Ctrl-C ends them at once.
        """
        self._coming: Iterator[Job | None] | None = iter(jobs)
        self._events = events
        self._free = list(range(self.num_slots(jobs)))
        self._postponed: list[_Task] = []  # to be tried again
        self._running: list[_Task] = []
        self._is_stopped, self._num_signals, self._leaves_at = False, 0, math.inf
        handled = 0
        with _handling(self._count_signal):
            try:
                while self._running or (self._is_left and not self._num_signals):
                    if handled < self._num_signals:  # one per turn: two at once would count as one
                        handled += 1
                        self._handle_signal(handled)
                    if time.monotonic() > self._leaves_at:
                        self._running.clear()
                        return False
                    if self._leaves_at == math.inf:
                        self._poll()
                        self._start()
                        self._poll()  # a signal must find what has just begun as started
                    self._events.tick()
                    time.sleep(self.pause)
            finally:
                self._send(signal.SIGTERM)  # even after an error, nothing is left behind
        return not self._is_left and not self._is_stopped

    def end_early(self, job: Job) -> None:
        """End a job that is not worth continuing; it saves first."""
        for running in self._running:
            if running.job == job and not running.ends_early:
                running.ends_early = True
                running.attempt.send(signal.SIGTERM)

    @property
    def _is_left(self) -> bool:
        """Whether there are jobs to start."""
        return bool(self._postponed) or self._coming is not None

    def _count_signal(self, number: int, frame: FrameType | None) -> None:
        self._num_signals += 1

    def _handle_signal(self, number: int) -> None:
        if self.patience is not None and number == 1:
            self._leaves_at = time.monotonic() + self.patience
            self._events.log(
                "Detaching: jobs continue, and the same command follows them again. Press again "
                f"within {self.patience:.0f} seconds to let each run save and exit."
            )
            return
        if number == 1 or self._leaves_at < math.inf:
            self._events.stops()
        else:
            self._events.log("Ending all running jobs at once.")
        self._leaves_at = math.inf
        self._send(signal.SIGINT if number < 3 else signal.SIGKILL)

    def _start(self) -> None:
        """Start new jobs while there are slots, then those that wait; none after a signal."""
        while self._free and self._coming is not None and not self._num_signals:
            job = next(self._coming, _END)
            if job is None:
                break
            if isinstance(job, Job):
                self._begin(_Task(job))
            else:
                self._coming = None
        for task in list(self._postponed):
            if self._free and not self._num_signals:
                self._postponed.remove(task)
                self._begin(task)

    def _begin(self, task: _Task) -> None:
        """Start a job, or put it off if another process runs it."""
        job, task.slot = task.job, self._free[0]
        attempt = None if job.is_done else self.adopt(job)
        if attempt is None:
            with job.opened_log() as log:
                if job.is_done:
                    self._events.ended(job, Ending("finished"), again=False)
                    return
                if log is None:
                    self._put_off(task)
                    return
                attempt = self.launch(job, log, task.slot)
        task.attempt = attempt
        task.tail, task.step, task.is_started = Tail(job.directory / "metrics.jsonl"), 0, False
        self._free.remove(task.slot)
        self._running.append(task)

    def _put_off(self, task: _Task) -> None:
        self._postponed.append(task)
        if not task.is_foreign:
            task.is_foreign = True
            self._events.waits(task.job)

    def _poll(self) -> None:
        """Report what the processes wrote, and handle those that ended."""
        for task in list(self._running):
            state = task.attempt.poll()
            if state == "pending":
                continue
            if state == "refused":
                self._release(task)
                self._put_off(task)
                continue
            if not task.is_started:
                task.is_started = True
                self._events.started(task.job)
            for row in task.tail.rows():
                task.step = max(task.step, row["step"])
                self._events.progressed(task.job, row)
            if isinstance(state, Exit):
                self._release(task)
                self._end(task, state)

    def _release(self, task: _Task) -> None:
        self._running.remove(task)
        self._free.append(task.slot)

    def _end(self, task: _Task, end: Exit) -> None:
        job, again = task.job, False
        is_cancelled = end.is_cancelled and not task.ends_early
        if end.status == 0 and job.is_begun:
            job.finish()
            ending = Ending("finished")
        elif end.status and (self._num_signals or is_cancelled):
            self._is_stopped = True
            ending = Ending("stopped", end.reason if is_cancelled else "")
        elif end.status and task.ends_early:
            ending = Ending("stopped early")
        else:
            reason = end.reason or "its directory was removed while it ran"
            ending = Ending("diverged" if _DIVERGED.search(reason) else "failed", reason)
            again = self._may_retry(task, is_lost=end.is_lost)
        if again:
            self._postponed.append(task)
        self._events.ended(job, ending, again=again)

    def _may_retry(self, task: _Task, *, is_lost: bool) -> bool:
        """Whether to try a job again; after the loss of a machine, as long as it progresses."""
        if not is_lost:
            task.retries += 1
            return task.retries <= self.retries
        if task.step > task.furthest:
            task.furthest, task.losses = task.step, 0
        task.losses += 1
        return task.losses <= _MAX_LOSSES

    def _send(self, number: signal.Signals) -> None:
        """Send a signal to all that runs; what has not started yet waits again."""
        for task in list(self._running):
            task.attempt.send(number)
            if not task.is_started:
                self._release(task)
                self._postponed.append(task)


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """While entered, handle signals that end a process, if this is the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in _SIGNALS if is_main}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def shares(num_jobs: int, *, devices: list[str], num_cores: int) -> list[dict[str, str]]:
    """Return the environment of each of several processes that run side by side.

    Several GPUs are assigned in turn. The cores are divided unless OMP_NUM_THREADS is set; a
    single process has them all.
    """
    assigned: list[dict[str, str]] = [{} for _ in range(num_jobs)]
    for i, share in enumerate(assigned):
        if len(devices) > 1:
            share[_VISIBLE] = devices[i % len(devices)]
        if num_jobs > 1 and _THREADS not in os.environ:
            share[_THREADS] = str(max(1, num_cores // num_jobs))
    return assigned


def visible_devices() -> list[str]:
    """Return the names of the GPUs that this process sees."""
    named = os.environ.get(_VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(i) for i in range(torch.cuda.device_count())]


@dataclass
class LocalRunner(Runner):
    """Runs jobs on this machine, one after the other or several side by side.

    A job whose mesh takes several processes gets them.

    The last digits of numbers on a CPU depend on the number of threads, so `jobs` must be the same
    to reproduce a sweep, unless OMP_NUM_THREADS is set.

    Attributes:
      jobs: points at a time.
      retries: how often a point that failed is retried, from its newest checkpoint.
    """

    _shares: list[dict[str, str]] = field(default_factory=list, init=False, repr=False)
    _forks: forking.Forks | None = field(default=None, init=False, repr=False)

    def run(self, jobs: Iterable[Job | None], events: Events) -> bool:
        """Run all jobs; see Runner."""
        num_cores = len(os.sched_getaffinity(0))
        self._shares = shares(self.jobs, devices=visible_devices(), num_cores=num_cores)
        try:
            return super().run(jobs, events)
        finally:
            if self._forks is not None:
                self._forks.close()
                self._forks = None

    def launch(self, job: Job, log: IO[bytes], slot: int) -> "_Process":
        """Start a process; see Runner."""
        share, devices = self._shares[slot], visible_devices()
        if len(devices) > 1 and (size := job.point.cost.num_processes) > 1:
            own = [devices[(slot * size + i) % len(devices)] for i in range(size)]
            share = {**share, _VISIBLE: ",".join(dict.fromkeys(own))}
        start = log.seek(0, os.SEEK_END)
        if job.point.cost.num_processes == 1 and forking.is_safe():
            self._forks = self._forks or forking.Forks(_PRELOADED)
            process = self._forks.start(job.command[1:], output=log, env=job.environment(share))
        else:
            process = Popen(
                job.local_command,
                stdin=DEVNULL,
                stdout=log,
                stderr=STDOUT,
                env=job.environment(share),
                start_new_session=True,  # the scheduler forwards Ctrl-C, and the terminal must not
            )
        return _Process(job, log, start, process)


class _Process:
    """An attempt at a job in a process of this machine.

    It keeps the lock of the log until the job is marked as finished, or another sweep would start
    the job again.
    """

    def __init__(
        self, job: Job, log: IO[bytes], start: int, process: Popen[bytes] | forking.Forked
    ) -> None:
        self._job, self._log_start, self._process = job, start, process
        self._locked = os.dup(log.fileno())

    def poll(self) -> State:
        status = self._process.poll()
        if status is None:
            return "running"
        reason = ""
        if status:
            reason = failure_reason(self._job.log, start=self._log_start, status=status)
        elif self._job.is_begun:
            self._job.finish()
        os.close(self._locked)
        return Exit(status, reason)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
