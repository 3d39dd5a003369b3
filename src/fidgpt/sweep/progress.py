"""What a sweep shows while it runs."""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fidgpt.graph import suggest
from fidgpt.sweep.objective import Objective, described, enter, keep, neighbours, usual
from fidgpt.sweep.results import ResultsTable, changed_code
from fidgpt.sweep.runners.attempt import Ending, Job
from fidgpt.sweep.tables import TO_COME, best, duration, running_table, tally
from fidgpt.sweep.values import Item
from fidgpt.train import RunError


@dataclass
class _Run:
    """One run that goes: when it was started, and between which steps and times it was seen."""

    begun: float
    step: int
    first: tuple[float, int] | None = None
    last: tuple[float, int] | None = None

    @property
    def stepping(self) -> tuple[float, int]:
        """Seconds between its first step and its last one, and how many it made in them."""
        if self.first is None or self.last is None:
            return 0.0, 0
        return self.last[0] - self.first[0], self.last[1] - self.first[1]


class Pace:
    """Steps against the clock, of every run that was seen running.

    What a run takes to begin and to end is known apart from its steps: of short runs it is most of
    the time, and larger ones take no more of it.
    """

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._runs: dict[str, _Run] = {}
        self._steps_seconds, self._steps_flops = 0.0, 0.0  # of runs that are over
        self._besides: list[float] = []  # seconds of those, less their steps
        self._all_seconds = 0.0

    def started(self, job: Job, step: int) -> None:
        """A run begins, or goes on after `step` steps."""
        self._runs[job.point.fingerprint] = _Run(time.monotonic(), step)

    def progressed(self, job: Job, step: int) -> None:
        """A step is done."""
        run = self._runs[job.point.fingerprint]
        if step > run.step:  # not one of before the run went on
            run.step = step
            run.last = (time.monotonic(), step)
            run.first = run.first or run.last

    def ended(self, job: Job) -> None:
        """A run is over."""
        run = self._runs.pop(job.point.fingerprint, None)
        if run is None:
            return
        seconds, steps = run.stepping
        whole = time.monotonic() - run.begun
        self._steps_seconds += seconds
        self._steps_flops += steps * _flops(job)
        self._besides.append(whole - seconds)
        self._all_seconds += whole

    def left(self, job: Job) -> float | None:
        """Seconds that a run still takes for its steps; None while nobody knows."""
        run = self._runs.get(job.point.fingerprint)
        if run is None or run.first is None:
            return None
        done = run.step - run.first[1]
        passed = time.monotonic() - run.first[0]
        return passed / done * (job.point.cost.num_steps - run.step) if done else None

    def left_of_all(self, jobs: Iterable[tuple[Job, int]]) -> float | None:
        """Seconds that all runs still take, each given with its last step; None as above."""
        seconds, flops, left, besides = self._steps_seconds, self._steps_flops, 0.0, 0.0
        for job, step in jobs:
            left += _flops(job) * (job.point.cost.num_steps - step)
            run = self._runs.get(job.point.fingerprint)
            if run is None or run.first is None:
                besides += self._usual_besides()
            else:
                more, steps = run.stepping
                seconds, flops = seconds + more, flops + steps * _flops(job)
        return (seconds / flops * left + besides) / self._side_by_side() if flops else None

    def _usual_besides(self) -> float:
        """Seconds that a run takes without its steps: of those that are over, or that began."""
        began = [run.first[0] - run.begun for run in self._runs.values() if run.first is not None]
        known = self._besides or began
        return sum(known) / len(known) if known else 0.0

    def _side_by_side(self) -> float:
        """How many runs went at a time so far."""
        now = time.monotonic()
        running = sum(now - run.begun for run in self._runs.values())
        return max(1.0, (self._all_seconds + running) / max(now - self._begun, 1e-9))


def _flops(job: Job) -> float:
    """Of a step."""
    return job.point.cost.flops / job.point.cost.num_steps


_BETWEEN_LINES = 15.0  # seconds
_WIDTH_WITHOUT_A_TERMINAL = 1000  # nothing is there to be filled


class Screen:
    """What a person sees of a sweep while it runs; also what keeps its book.

    Args:
      book: the results.
      console: where to write; standard output unless said.
      num_jobs: how many jobs there will be, where the book does not know them all yet.
      objective: the number that points are compared by; the held-out loss unless said.

    Attributes:
      book: as it was given.
    """

    def __init__(
        self,
        book: ResultsTable,
        *,
        console: Console | None = None,
        num_jobs: int | None = None,
        objective: Objective | None = None,
    ) -> None:
        self.book = book
        self._num_jobs = num_jobs or len(book.jobs)
        self._objective = objective
        self._console = console or _plain()
        if not self._console.is_terminal:
            self._console.width = _WIDTH_WITHOUT_A_TERMINAL
        self._pace = Pace()
        self._told: dict[str, float] = {}
        self._trouble: str | None = None
        self._has_warned = False
        self._live = Live(console=self._console, get_renderable=self._view, transient=True)

    def __enter__(self) -> "Screen":
        if self.book.num_damaged:
            self.say(f"warning: {_no_rows(self.book.num_damaged)}: they are made anew.")
        self.book.write()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
        self.book.write()
        if self.book.trouble is not None and exception[0] is None:
            raise RunError(f"{self.book.trouble} Then give the same command again.")

    def started(self, job: Job) -> None:
        """Says that a process of the job was started."""
        self.book.started(job)
        self._pace.started(job, self.book.row(job)["step"])
        self._told[job.point.fingerprint] = time.monotonic()
        if self._console.is_terminal:
            self._live.start()  # not before there is something to see
        else:
            step = self.book.row(job)["step"]
            self.say(f"{self._count(job)} {job.point.name}: " + _begins(step))

    def progressed(self, job: Job, row: Mapping[str, Any]) -> None:
        """Takes down a row of metrics."""
        self.book.progressed(job, row)
        self._pace.progressed(job, row["step"])
        now = time.monotonic()
        if self._console.is_terminal or now - self._told[job.point.fingerprint] < _BETWEEN_LINES:
            return
        self._told[job.point.fingerprint] = now
        left = self._pace.left(job)
        self.say(f"{self._count(job)} {job.point.name}: {self._numbers(job)}{_left(left)}")

    def ended(self, job: Job, ending: Ending, *, again: bool) -> None:
        """Says how a process of the job ended."""
        self.book.ended(job, ending)
        self._pace.ended(job)
        text = f"{self._count(job)} {job.point.name}: {ending.status}"
        if ending.last_words:
            text += f": {ending.last_words}"
        elif ending.status == "finished":
            text += f", {self._numbers(job)}{self._best(job)}"
        self.say(f"{text.rstrip('.')}. It is tried again." if again else text)
        if ending.status == "finished":
            self._warn_of_unmeasured(job)

    def waits(self, job: Job) -> None:
        """Says that another process runs the job."""
        self.say(f"{self._count(job)} {job.point.name}: another process runs it; waiting for it.")

    def stops(self) -> None:
        """Says that the end was asked for."""
        self.say("Stopping: each run saves where it is. Once more ends them at once.")

    def more(self) -> None:
        """There is a job more than was thought."""
        self._num_jobs += 1

    def tick(self) -> None:
        """Writes the book now and then; says so where that fails, and goes on."""
        self.book.tick()
        if self.book.trouble not in (None, self._trouble):
            self.say(f"warning: {self.book.trouble} It is tried again.")
        self._trouble = self.book.trouble

    def say(self, text: str) -> None:
        """Writes a line for a person."""
        self._console.print(text, soft_wrap=True, markup=False, emoji=False)

    def _warn_of_unmeasured(self, job: Job) -> None:
        """Says, once, that a run which came to its end has not measured what counts."""
        by, metrics = self._objective, self.book.row(job)["metrics"]
        if by is not None and by.name not in metrics and not self._has_warned:
            self._has_warned = True
            there = [name for name in metrics if name != "step"]
            self.say(f"warning: no run reports {by.name}. {suggest(by.name, there)}")

    def _count(self, job: Job) -> str:
        return f"[{self.book.jobs.index(job) + 1}/{self._num_jobs}]"

    def _numbers(self, job: Job) -> str:
        row = self.book.row(job)
        names = dict.fromkeys(["loss", self._by(row).name])
        numbers = [f"{name} {row['metrics'][name]:.4f}" for name in names if name in row["metrics"]]
        return ", ".join([f"step {row['step']:,}/{row['num_steps']:,}", *numbers])

    def _best(self, job: Job | None = None) -> str:
        """Which point is best so far; of a job that has just ended, whether it is."""
        rows = [row for row in self.book if row["status"] == "finished"]
        by = self._by(*rows)
        row = best(rows, by)
        if row is not None and job is not None and row["fingerprint"] == job.point.fingerprint:
            return "; the best so far"
        return f"; best so far {row['name']} with {row['metrics'][by.name]:.4f}" if row else ""

    def _by(self, *rows: Mapping[str, Any]) -> Objective:
        return self._objective or usual(rows)

    def _view(self) -> Group:
        """The live table, and a line of what there is in all."""
        text = tally(self.book, self._num_jobs)
        todo = [job for job in self.book.jobs if self.book.row(job)["status"] in TO_COME]
        left = self._pace.left_of_all((job, self.book.row(job)["step"]) for job in todo)
        text += f", about {duration(left)} left" if left is not None else ""
        running = [job for job in todo if self.book.row(job)["status"] == "running"]
        going = ((self.book.row(job), self._pace.left(job)) for job in running)
        table = running_table(going, self._objective)
        return Group(table, Text(text + self._best()))


def _no_rows(count: int) -> str:
    what = "1 line is no row" if count == 1 else f"{count} lines are no rows"
    return f"{what} of the table"


def _plain() -> Console:
    """Standard output: alive on a terminal only, which a notebook's kernel claims to be."""
    is_terminal = sys.stdout.isatty()
    return Console(highlight=False, force_jupyter=False, force_terminal=is_terminal)


def _begins(step: int) -> str:
    return f"goes on, it was at step {step:,}" if step else "begins"


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f", {duration(seconds)} left"


@contextlib.contextmanager
def opened(
    directory: Path,
    jobs: Sequence[Job],
    *,
    items: Sequence[Item],
    objective: Objective | None,
    console: Console | None,
    num_jobs: int | None = None,
) -> Iterator[Screen]:
    """The screen of a sweep, with its book.

    Args:
      directory: of the sweep.
      jobs: those that are known.
      items: the directives, with what varies in its places.
      objective: what points are compared by, which the directory keeps; the held-out loss unless
        said.
      console: where to write; standard output unless said.
      num_jobs: how many jobs there will be, where not all are known.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if objective is not None:
        keep(objective, directory)
    sweep, book = described(items), ResultsTable(directory, jobs)
    warnings = [*changed_code(book.rows.values(), directory), *neighbours(directory, sweep)]
    enter(directory, sweep)
    with Screen(book, console=console, num_jobs=num_jobs, objective=objective) as screen:
        for line in warnings:
            screen.say(f"warning: {line}")
        yield screen
