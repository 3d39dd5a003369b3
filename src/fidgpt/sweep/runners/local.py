"""Running the points of a sweep on this machine, each in a process of its own."""

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from subprocess import DEVNULL, STDOUT, Popen
from typing import IO

from fidgpt.sweep.runners.attempt import Exit, State, environment_of
from fidgpt.sweep.runners.devices import shares
from fidgpt.sweep.runners.job import Events, Job
from fidgpt.sweep.runners.tail import last_words
from fidgpt.sweep.runners.work import Work

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
