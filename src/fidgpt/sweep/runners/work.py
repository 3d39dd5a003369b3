"""The scheduler of jobs."""

import json
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fidgpt.sweep.runners.attempt import Adopt, Attempt, Ending, Events, Exit, Job, Launch

_WIDEST = 300
# What processes of a run say of each other's end, and not of their own.
_SECOND_HAND = ("another process of the run is gone", "the main process failed")


class Tail:
    """The rows of a metrics file that were written since one last looked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def rows(self) -> list[dict[str, Any]]:
        """The new rows; what is no row, as a line that is half written, is passed over."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._at:  # cut, as a run does that goes on from earlier
                    self._at = 0
                file.seek(self._at)
                text = file.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        return [row for line in whole.splitlines() if (row := _row(line)) is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def of_rank(path: Path, rank: int) -> Path:
    """The file of one of several processes: the first one has that of the point."""
    return path.with_suffix(f".{rank}{path.suffix}") if rank else path


def is_second_hand(words: str) -> bool:
    """Whether last words only say that another process of the run failed."""
    return words.startswith(_SECOND_HAND)


def last_words(log: Path, *, after: int, status: int) -> str:
    """Why a process ended, in a line.

    Args:
      log: what it wrote.
      after: where in the log its own words begin.
      status: how it ended: the signal that killed it, made negative, or its exit status.
    """
    try:
        with log.open("rb") as file:
            file.seek(after)
            text = file.read().decode(errors="replace")
    except OSError:  # somebody removed it
        text = ""
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        return f"killed by {name}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [i for i, line in enumerate(lines) if line.startswith("error:")]
    if told:
        words = " ".join(lines[told[-1] :]).removeprefix("error:").strip()
    else:
        words = lines[-1] if lines else f"exit status {status}, without a word"
    return words if len(words) <= _WIDEST else words[: _WIDEST - 3] + "..."


_DIVERGED = re.compile(r"step \d+ diverged")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_END = object()
_MAX_LOSSES = 5  # of machines under a job that gets no further: then it may be what ends them


@dataclass
class _Running:
    """A job with the attempt at it, and the place that it has."""

    job: Job
    attempt: Attempt
    slot: int
    tail: Tail
    is_started: bool = False
    step: int = 0


class Work:
    """What waits, what runs and what was stopped, of the jobs of one engine.

    Args:
      jobs: asked for one by one, when there is a place, so that what came of earlier ones may
        decide which one it is; a None is asked again after a pause.
      launch: how the engine begins an attempt.
      num_places: attempts at a time.
      retries: how often a job is tried again that failed.
      events: hears of it.
      adopt: how the engine finds attempts that it keeps while no sweep runs; it keeps none unless
        said.
    """

    def __init__(
        self,
        jobs: Iterator[Job | None],
        launch: Launch,
        *,
        num_places: int,
        retries: int,
        events: Events,
        adopt: Adopt | None = None,
    ) -> None:
        self._coming: Iterator[Job | None] | None = jobs
        self._launch = launch
        self._adopt = adopt
        self._free = list(range(num_places))
        self._retries = retries
        self._events = events
        self._waiting: list[Job] = []  # to be tried again
        self._running: list[_Running] = []
        self._stopped: list[Job] = []
        self._retried: Counter[Path] = Counter()
        self._losses: Counter[Path] = Counter()
        self._furthest: Counter[Path] = Counter()
        self._early: set[Path] = set()
        self._foreign: set[str] = set()
        self._stops = 0

    def run(self, *, pause: float, leave: Callable[[], None] | None = None) -> bool:
        """Runs all of them; False where a signal stopped that.

        Ctrl-C, SIGTERM and SIGHUP let each run save where it is and end; a second Ctrl-C ends
        them at once.

        Args:
          pause: seconds between two looks at what runs.
          leave: called at the first signal, where what runs needs no sweep; the second one then
            lets it save and end, the third one ends it at once.
        """
        told = 0
        with Signals(self._stop):
            try:
                while self._running or (self._is_left and not self._stops):
                    if told < self._stops:  # one a turn: at once, a process would hear them as one
                        told += 1
                        self._obey(told, leave)
                    if not self._stops:
                        self._start()
                    self._look()
                    self._events.tick()
                    time.sleep(pause)
            finally:
                self._send(signal.SIGTERM)  # where this very code fails, nothing is left behind
        return not self._is_left and not self._stopped

    def _obey(self, told: int, leave: Callable[[], None] | None) -> None:
        """Does what a signal says, which is the first one, the second one, ..."""
        if told == 1 and leave is not None:
            leave()
            return
        if told == (1 if leave is None else 2):
            self._events.stops()
        else:
            self._events.say("Ending at once what still runs.")
        self._send(signal.SIGINT if told < 3 else signal.SIGKILL)

    def end_early(self, job: Job) -> None:
        """Sends a job the signal to save and end."""
        for one in self._running:
            if one.job == job and job.log not in self._early:
                self._early.add(job.log)
                one.attempt.send(signal.SIGTERM)

    @property
    def _is_left(self) -> bool:
        """Whether some jobs were not started yet, or may come."""
        return bool(self._waiting) or self._coming is not None

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stops += 1

    def _start(self) -> None:
        """Starts what comes, as long as there is a place, then what was put off before."""
        while self._free and self._coming is not None:
            job = next(self._coming, _END)
            if job is None:
                break
            if isinstance(job, Job):
                self._begin(job)
            else:
                self._coming = None
        for job in list(self._waiting):
            if not self._free:
                return
            self._waiting.remove(job)
            self._begin(job)

    def _begin(self, job: Job) -> None:
        """Starts a job; what somebody else runs is put off."""
        if job.is_done:  # by another process, meanwhile
            self._events.ended(job, Ending("finished"), again=False)
            return
        if self._adopt is not None and (kept := self._adopt(job)) is not None:
            self._follow(job, kept, self._free.pop(0))
            return
        with job.opened_log() as log:
            if log is None:
                self._put_off(job)
                return
            if job.is_done:  # by another process, since one looked
                self._events.ended(job, Ending("finished"), again=False)
                return
            job.make_way()
            slot = self._free.pop(0)
            attempt = self._launch(job, log, slot)
        self._follow(job, attempt, slot)

    def _follow(self, job: Job, attempt: Attempt, slot: int) -> None:
        self._running.append(_Running(job, attempt, slot, Tail(job.directory / "metrics.jsonl")))

    def _put_off(self, job: Job) -> None:
        self._waiting.append(job)
        if job.point.fingerprint not in self._foreign:
            self._foreign.add(job.point.fingerprint)
            self._events.waits(job)

    def _look(self) -> None:
        """Passes on what the processes wrote, and takes leave of those that ended."""
        for one in list(self._running):
            state = one.attempt.look()
            if state == "placing":
                continue
            if state == "refused":
                self._leave(one)
                self._put_off(one.job)
                continue
            if not one.is_started:
                one.is_started = True
                self._events.started(one.job)
            for row in one.tail.rows():
                one.step = max(one.step, row["step"])
                self._events.progressed(one.job, row)
            if isinstance(state, Exit):
                self._leave(one)
                self._end(one, state)

    def _leave(self, one: _Running) -> None:
        self._running.remove(one)
        self._free.append(one.slot)

    def _end(self, one: _Running, gone: Exit) -> None:
        job = one.job
        if gone.status == 0 and not job.is_begun:
            self._fail(one, Exit(1, "its directory was removed as it ran"))
        elif gone.status == 0:
            job.finish()
            self._events.ended(job, Ending("finished"), again=False)
        elif self._stops:
            self._stopped.append(job)
            self._events.ended(job, Ending("stopped"), again=False)
        elif job.log in self._early:
            self._events.ended(job, Ending("stopped early"), again=False)
        elif gone.is_told:
            self._stopped.append(job)
            self._events.ended(job, Ending("stopped", gone.words), again=False)
        else:
            self._fail(one, gone)

    def _fail(self, one: _Running, gone: Exit) -> None:
        again = self._may_move(one) if gone.is_lost else self._may_retry(one.job)
        if again:
            self._waiting.append(one.job)
        self._events.ended(one.job, failure(gone.words), again=again)

    def _may_retry(self, job: Job) -> bool:
        self._retried[job.log] += 1
        return self._retried[job.log] <= self._retries

    def _may_move(self, one: _Running) -> bool:
        """Whether a job goes to another machine: it does as long as it gets further."""
        log = one.job.log
        if one.step > self._furthest[log]:
            self._furthest[log], self._losses[log] = one.step, 0
        self._losses[log] += 1
        return self._losses[log] <= _MAX_LOSSES

    def _send(self, number: signal.Signals) -> None:
        """Sends a signal to all that runs; what was not started yet goes back to what waits."""
        for one in list(self._running):
            one.attempt.send(number)
            if not one.is_started:
                self._leave(one)
                self._waiting.append(one.job)


def failure(words: str) -> Ending:
    """The end of a job that failed, by its last words."""
    return Ending("diverged" if _DIVERGED.search(words) else "failed", words)


class Signals:
    """While entered, signals that end a process are handled, where a thread may do that."""

    def __init__(self, handler: Callable[[int, FrameType | None], None]) -> None:
        self._handler = handler
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._handler) for one in _SIGNALS}

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
