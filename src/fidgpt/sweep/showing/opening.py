"""How a sweep of any kind begins: its directory is made, and what is odd about it is said."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from fidgpt.sweep.points.axes import Item
from fidgpt.sweep.results.book import Book
from fidgpt.sweep.results.neighbours import described, enter, neighbours
from fidgpt.sweep.results.objective import Objective, keep
from fidgpt.sweep.results.versions import changed_code
from fidgpt.sweep.runners.job import Job
from fidgpt.sweep.showing.screen import Screen


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
    sweep, book = described(items), Book(directory, jobs)
    warnings = [*changed_code(book.rows.values(), directory), *neighbours(directory, sweep)]
    enter(directory, sweep)
    with Screen(book, console=console, num_jobs=num_jobs, objective=objective) as screen:
        for line in warnings:
            screen.say(f"warning: {line}")
        yield screen
