"""A sweep as it runs: a live table on a terminal, lines now and then in a pipe or a log."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fidgpt.graph import suggest
from fidgpt.sweep.results.book import Book
from fidgpt.sweep.results.objective import Objective, usual
from fidgpt.sweep.runners.job import Ending, Job
from fidgpt.sweep.showing.pace import Pace
from fidgpt.sweep.showing.tables import TO_COME, best, duration, running_table, tally
from fidgpt.train import RunError

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
        book: Book,
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
