"""What a sweep shows while it runs."""

import time
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fidgpt.sweep import results
from fidgpt.sweep.objective import Objective, usual, write_objective
from fidgpt.sweep.results import TO_COME, ResultsTable, best, tally
from fidgpt.sweep.runners.jobs import Ending, Job
from fidgpt.train.estimates.summary_text import duration

_BETWEEN_LINES = 15.0  # seconds


class Screen:
    """Shows a sweep while it runs, and keeps its table.

    Args:
      table: the results.
      console: where to write; defaults to standard output.
      num_jobs: the number of jobs, if the table does not have all of them yet.
      objective: what points are compared by, which the directory records; defaults to the held-out
        loss.

    Attributes:
      table: as given.
    """

    def __init__(
        self,
        table: ResultsTable,
        *,
        console: Console | None = None,
        num_jobs: int | None = None,
        objective: Objective | None = None,
    ) -> None:
        self.table = table
        self._num_jobs = num_jobs or len(table.jobs)
        self._objective = objective
        self._console = console or results.console_of_log()
        self._begin = 0.0  # of the first run
        self._flops = 0.0  # of all runs since then
        self._furthest: dict[str, int] = {}  # step of each run
        self._shown: dict[str, float] = {}
        self._live = Live(console=self._console, get_renderable=self._view, transient=True)

    def __enter__(self) -> Self:
        directory = self.table.directory
        results.claim(directory)
        for line in results.changed_code(self.table):
            self.log(f"warning: {line}")
        if self._objective is not None:
            write_objective(self._objective, directory)
        self.table.write()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
        self.table.write()

    def started(self, job: Job) -> None:
        """Show that a process of the job was started."""
        self.table.started(job)
        step = self.table.row(job)["step"]
        self._shown[job.point.fingerprint] = time.monotonic()
        self._furthest[job.point.fingerprint] = step
        self._begin = self._begin or time.monotonic()
        if self._console.is_terminal:
            self._live.start()  # not before there is something to see
        else:
            self._log_of(job, f"resumes after step {step:,}" if step else "starts")

    def progressed(self, job: Job, row: Mapping[str, Any]) -> None:
        """Record a row of metrics, and show one now and then."""
        self.table.progressed(job, row)
        before = self._furthest[job.point.fingerprint]
        self._furthest[job.point.fingerprint] = step = max(before, row["step"])
        self._flops += _flops(job, step - before)
        now = time.monotonic()
        if self._console.is_terminal or now - self._shown[job.point.fingerprint] < _BETWEEN_LINES:
            return
        self._shown[job.point.fingerprint] = now
        self._log_of(job, f"{self._numbers(job)}{self._left()}")

    def ended(self, job: Job, ending: Ending, *, again: bool) -> None:
        """Show how a process of the job ended."""
        self.table.ended(job, ending)
        text = ending.status
        if ending.last_words:
            text += f": {ending.last_words}"
        elif ending.status == "finished":
            text += f", {self._numbers(job)}{self._best(job)}"
        self._log_of(job, f"{text.rstrip('.')}. It will be retried." if again else text)

    def waits(self, job: Job) -> None:
        """Show that another process runs the job."""
        self._log_of(job, "another process is running it; waiting.")

    def stops(self) -> None:
        """Show that a signal asked for the end."""
        self.log("Stopping: each run saves and exits. Press again to end them at once.")

    def tick(self) -> None:
        """Write the table now and then."""
        self.table.tick()

    def log(self, text: str) -> None:
        """Write a line for the user."""
        self._console.print(text, soft_wrap=True, markup=False, emoji=False)

    def _log_of(self, job: Job, text: str) -> None:
        count = f"[{self.table.jobs.index(job) + 1}/{self._num_jobs}]"
        self.log(f"{count} {job.point.name}: {text}")

    def _numbers(self, job: Job) -> str:
        row = self.table.row(job)
        names = dict.fromkeys(["loss", (self._objective or usual([row])).name])
        numbers = [f"{name} {row['metrics'][name]:.4f}" for name in names if name in row["metrics"]]
        return ", ".join([f"step {row['step']:,}/{row['num_steps']:,}", *numbers])

    def _best(self, job: Job | None = None) -> str:
        """Return which point is best so far; of a job that has just ended, whether it is."""
        rows = [row for row in self.table if row["status"] == "finished"]
        by = self._objective or usual(rows)
        row = best(rows, by)
        if row is not None and job is not None and row["fingerprint"] == job.point.fingerprint:
            return "; the best so far"
        return f"; best so far {row['name']} with {row['metrics'][by.name]:.4f}" if row else ""

    def _view(self) -> Group:
        """Return the live table, and a line about all points."""
        running = [row for row in self.table if row["status"] == "running"]
        text = tally(self.table, self._num_jobs) + self._left() + self._best()
        return Group(results.results_table(running, self._objective), Text(text))

    def _left(self) -> str:
        rows = [(job, self.table.row(job)) for job in self.table.jobs]
        todo = [(job, row["step"]) for job, row in rows if row["status"] in TO_COME]
        flops = sum(_flops(job, job.point.cost.num_steps - step) for job, step in todo)
        if not self._flops:
            return ""
        left = (time.monotonic() - self._begin) / self._flops * flops
        return f", about {duration(left)} left in total"


def _flops(job: Job, num_steps: int) -> float:
    return job.point.cost.flops / job.point.cost.num_steps * num_steps
