"""Jobs as processes of this machine."""

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from subprocess import DEVNULL, STDOUT, Popen
from typing import IO

import torch

from fidgpt.sweep.runners.jobs import Events, Exit, Job, Runner, State
from fidgpt.sweep.runners.remote import failure_reason

_THREADS, _VISIBLE = "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"


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

    The last digits of numbers on a CPU depend on the number of threads, so `jobs` must be the same
    to reproduce a sweep, unless OMP_NUM_THREADS is set.

    Attributes:
      jobs: processes at a time.
      retries: how often a point that failed is retried, from its newest checkpoint.
    """

    _shares: list[dict[str, str]] = field(default_factory=list, init=False, repr=False)

    def run(self, jobs: Iterable[Job | None], events: Events) -> bool:
        """Run all jobs; see Runner."""
        num_cores = len(os.sched_getaffinity(0))
        self._shares = shares(self.jobs, devices=visible_devices(), num_cores=num_cores)
        return super().run(jobs, events)

    def launch(self, job: Job, log: IO[bytes], slot: int) -> "_Process":
        """Start a process; see Runner."""
        return _Process(job, log, self._shares[slot])


class _Process:
    """An attempt at a job in a process of this machine.

    It keeps the lock of the log until the job is marked as finished, or another sweep would start
    the job again.
    """

    def __init__(self, job: Job, log: IO[bytes], share: Mapping[str, str]) -> None:
        self._job, self._log_start = job, log.seek(0, os.SEEK_END)
        self._process = Popen(
            job.command,
            stdin=DEVNULL,
            stdout=log,
            stderr=STDOUT,
            env=job.environment(share),
            start_new_session=True,  # the scheduler forwards Ctrl-C, and the terminal must not
        )
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
