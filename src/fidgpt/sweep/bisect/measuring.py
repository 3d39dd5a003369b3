"""Training the probes of a bisection on this machine, and reading what they came to."""

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fidgpt.sweep.points.point import Point
from fidgpt.sweep.results.book import Book
from fidgpt.sweep.results.objective import objective_of, reported_by
from fidgpt.sweep.runners.job import Job, Runner, jobs_of
from fidgpt.sweep.showing.screen import Screen


class Stopped(Exception):
    """A signal asked for the end before all was done."""


class Measuring:
    """Trains points that are not done yet, each in a run directory of its own.

    Args:
      directory: where those lie, with the table of all.
      objective: the number that is read.
      runner: what runs the points.
      flags: what every command is told.
      console: where to tell of it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        objective: str,
        runner: Runner,
        flags: Sequence[str],
        console: Console,
    ) -> None:
        self._directory = directory
        self._objective = objective_of(objective)
        self._runner = runner
        self._flags = tuple(flags)
        self._console = console

    def __call__(self, points: Sequence[Point]) -> list[float | None]:
        """What each point came to: nan where it diverged, None where it has no value.

        Raises:
          Stopped: a signal asked for the end.
        """
        jobs = jobs_of(points, self._directory, self._flags)
        self._directory.mkdir(parents=True, exist_ok=True)
        book = Book(self._directory, jobs)
        todo = [job for job in jobs if book.row(job)["status"] not in ("finished", "diverged")]
        if todo:
            with Screen(book, console=self._console, objective=self._objective) as screen:
                if not self._runner.run(todo, screen):
                    raise Stopped
        return [self._value(job, book) for job in jobs]

    def _value(self, job: Job, book: Book) -> float | None:
        if book.row(job)["status"] == "diverged":
            return math.nan
        return reported_by(job.directory).get(self._objective.name) if job.is_done else None
