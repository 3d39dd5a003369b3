"""Jobs as processes of this machine."""

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from subprocess import DEVNULL, STDOUT, Popen
from typing import IO

import torch

from fidgpt.sweep.runners.attempt import Events, Exit, Job, State, environment_of
from fidgpt.sweep.runners.work import Work, last_words

_THREADS = "OMP_NUM_THREADS"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def shares(num_jobs: int) -> list[dict[str, str]]:
    """The environment of each of as many processes as run side by side.

    Several GPUs are dealt out, in turns where there are more processes. The cores are divided
    among the processes unless OMP_NUM_THREADS says otherwise; one process alone has them all.
    """
    return shares_of(
        num_jobs,
        devices=visible_devices(os.environ),
        num_cores=len(os.sched_getaffinity(0)),
        environment=os.environ,
    )


def shares_of(
    num_jobs: int, *, devices: list[str], num_cores: int, environment: Mapping[str, str]
) -> list[dict[str, str]]:
    """The same of a machine with these devices and cores."""
    dealt: list[dict[str, str]] = [{} for _ in range(num_jobs)]
    if len(devices) > 1:
        for i, share in enumerate(dealt):
            share[_VISIBLE] = devices[i % len(devices)]
    if num_jobs > 1 and _THREADS not in environment:
        for share in dealt:
            share[_THREADS] = str(max(1, num_cores // num_jobs))
    return dealt


def visible_devices(environment: Mapping[str, str]) -> list[str]:
    """The names of the GPUs that a process with this environment sees."""
    named = environment.get(_VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(i) for i in range(torch.cuda.device_count())]


_PAUSE = 0.2  # seconds between two looks at the processes


@dataclass
class LocalRunner:
    """Runs jobs one after the other, or several side by side.

    Numbers on a CPU depend in their last digits on how many threads compute them, so `jobs`
    belongs to what makes a sweep the same again, unless OMP_NUM_THREADS is set.

    Attributes:
      jobs: processes at a time.
      retries: how often a point is started anew that failed; each time it goes on from its newest
        checkpoint.
    """

    jobs: int = 1
    retries: int = 0
    _work: Work | None = field(default=None, init=False)

    def run(self, jobs: Iterable[Job | None], events: Events) -> bool:
        """Runs all of them; False where a signal stopped that.

        Each job is asked for when there is a place for it, so that what came of earlier ones may
        decide which one it is; a None is asked again after a pause.

        Ctrl-C, SIGTERM and SIGHUP let each run save where it is and end; a second Ctrl-C ends
        them at once.
        """
        dealt = shares(self.jobs)

        def launch(job: Job, log: IO[bytes], slot: int) -> _Process:
            return _Process(job, log, dealt[slot])

        self._work = Work(
            iter(jobs), launch, num_places=self.jobs, retries=self.retries, events=events
        )
        return self._work.run(pause=_PAUSE)

    def end_early(self, job: Job) -> None:
        """Ends a job that is not worth going on with; it saves where it is."""
        if self._work is not None:
            self._work.end_early(job)


class _Process:
    """An attempt at a job in a process of this machine.

    Args:
      job: what it is to do.
      log: its output, whose lock it keeps until the job is marked, or another driver would begin
        what is done.
      share: what it was dealt of the machine.
    """

    def __init__(self, job: Job, log: IO[bytes], share: Mapping[str, str]) -> None:
        self._job, self._log_at = job, log.seek(0, os.SEEK_END)
        self._process = Popen(
            job.command,
            stdin=DEVNULL,
            stdout=log,
            stderr=STDOUT,
            env=environment_of(job, share),
            start_new_session=True,  # Ctrl-C is passed on once, and not by the terminal too
        )
        self._locked = os.dup(log.fileno())

    def look(self) -> State:
        status = self._process.poll()
        if status is None:
            return "running"
        words = ""
        if status:
            words = last_words(self._job.log, after=self._log_at, status=status)
        elif self._job.is_begun:
            self._job.finish()
        os.close(self._locked)
        return Exit(status, words)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
