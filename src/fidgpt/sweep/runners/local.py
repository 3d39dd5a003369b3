"""Running the points of a sweep on this machine, each in a process of its own."""

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from types import FrameType
from typing import Any

from fidgpt.sweep.runners.devices import shares
from fidgpt.sweep.runners.job import Ending, Events, Job
from fidgpt.sweep.runners.tail import Tail, last_words
from fidgpt.train.tracking.described import GROUP

_PAUSE = 0.2  # seconds between two looks at the processes
_DIVERGED = re.compile(r"step \d+ diverged")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class _Running:
    """A job with its process, and the place on the machine that it has."""

    job: Job
    process: Popen[bytes]
    slot: int
    log_at: int
    tail: Tail


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
    _stops: int = field(default=0, init=False)
    _work: "_Work | None" = field(default=None, init=False)

    def run(self, jobs: Iterable[Job], events: Events) -> bool:
        """Runs all of them; False where a signal stopped that.

        Each job is asked for when there is a place for it, so that what came of earlier ones may
        decide which one it is.

        Ctrl-C, SIGTERM and SIGHUP let each run save where it is and end; a second Ctrl-C ends
        them at once.
        """
        places = shares(self.jobs)
        with _Signals(self._stop):
            self._work = work = _Work(iter(jobs), places, self.retries, events)
            self._stops, told = 0, 0
            try:
                while work.running or (work.is_left and not self._stops):
                    if told < self._stops:
                        told = self._stops
                        events.stops()
                        work.stop(signal.SIGINT if told < 3 else signal.SIGKILL)
                    if not self._stops:
                        work.start()
                    work.look(stopping=self._stops > 0)
                    events.tick()
                    time.sleep(_PAUSE)
            finally:
                work.stop(signal.SIGTERM)  # where this very code fails, nothing is left behind
        return not work.is_left and not work.stopped

    def end_early(self, job: Job) -> None:
        """Ends a job that is not worth going on with; it saves where it is."""
        if self._work is not None:
            self._work.end_early(job)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stops += 1


class _Work:
    """What waits, what runs and what was stopped."""

    def __init__(
        self, jobs: Iterator[Job], places: list[dict[str, str]], retries: int, events: Events
    ) -> None:
        self._coming: Iterator[Job] | None = jobs
        self.waiting: list[Job] = []  # to be tried again
        self.running: list[_Running] = []
        self.stopped: list[Job] = []
        self._free = list(range(len(places)))
        self._places = places
        self._retries = retries
        self._retried: Counter[Path] = Counter()
        self._early: set[Path] = set()
        self._events = events
        self._foreign: set[str] = set()

    @property
    def is_left(self) -> bool:
        """Whether some jobs were not started yet, or may come."""
        return bool(self.waiting) or self._coming is not None

    def start(self) -> None:
        """Starts what comes, as long as there is a place, then what was put off before."""
        while self._free and self._coming is not None:
            job = next(self._coming, None)
            if job is None:
                self._coming = None
            else:
                self._begin(job)
        for job in list(self.waiting):
            if not self._free:
                return
            self.waiting.remove(job)
            self._begin(job)

    def _begin(self, job: Job) -> None:
        """Starts a job; what somebody else runs is put off."""
        if job.is_done:  # by another process, meanwhile
            self._events.ended(job, Ending("finished"), again=False)
            return
        with job.opened_log() as log:
            if log is not None:
                self._launch(job, log)
                return
        self.waiting.append(job)
        if job.point.fingerprint not in self._foreign:
            self._foreign.add(job.point.fingerprint)
            self._events.waits(job)

    def _launch(self, job: Job, log: Any) -> None:
        slot = self._free.pop(0)
        at = log.seek(0, os.SEEK_END)
        process = Popen(
            job.command,
            stdin=DEVNULL,
            stdout=log,
            stderr=STDOUT,
            env={GROUP: job.directory.resolve().parent.name, **os.environ, **self._places[slot]},
            start_new_session=True,  # Ctrl-C is passed on once, and not by the terminal too
        )
        self.running.append(_Running(job, process, slot, at, Tail(job.directory / "metrics.jsonl")))
        self._events.started(job)

    def look(self, *, stopping: bool) -> None:
        """Passes on what the processes wrote, and takes leave of those that ended."""
        for one in list(self.running):
            status = one.process.poll()
            for row in one.tail.rows():
                self._events.progressed(one.job, row)
            if status is not None:
                self.running.remove(one)
                self._free.append(one.slot)
                self._end(one, status, stopping=stopping)

    def _end(self, one: _Running, status: int, *, stopping: bool) -> None:
        if status == 0:
            one.job.finish()
            self._events.ended(one.job, Ending("finished"), again=False)
            return
        if stopping:
            self.stopped.append(one.job)
            self._events.ended(one.job, Ending("stopped"), again=False)
            return
        if one.job.log in self._early:
            self._events.ended(one.job, Ending("stopped early"), again=False)
            return
        words = last_words(one.job.log, after=one.log_at, status=status)
        ending = Ending("diverged" if _DIVERGED.search(words) else "failed", words)
        again = self._retried[one.job.log] < self._retries
        if again:
            self._retried[one.job.log] += 1
            self.waiting.append(one.job)
        self._events.ended(one.job, ending, again=again)

    def end_early(self, job: Job) -> None:
        """Sends a job the signal to save and end."""
        for one in self.running:
            if one.job == job and job.log not in self._early:
                self._early.add(job.log)
                one.process.send_signal(signal.SIGTERM)

    def stop(self, number: signal.Signals) -> None:
        """Sends a signal to all that runs."""
        for one in self.running:
            one.process.send_signal(number)


class _Signals:
    """While entered, signals that end a process are handled, where a thread may do that."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._handler) for one in _SIGNALS}

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
