"""The results of a sweep: files in its directory, tables, and the screen of one that runs."""

import csv
import io
import json
import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fidgpt.errors import listed
from fidgpt.files import parse_json, read_bytes, wait_for_lock, write_whole
from fidgpt.graph import ConfigError, secrets
from fidgpt.processes.rendezvous import digest_of_sources
from fidgpt.sweep import objective as objectives
from fidgpt.sweep.objective import Objective
from fidgpt.sweep.runners.jobs import Ending, Job
from fidgpt.train.estimates.summary_text import counted, duration

__all__ = ["Results", "read_results"]

Result = dict[str, Any]
TABLE, SHEET, LOCK = "table.jsonl", "results.csv", ".table.lock"
SEARCH = "study.journal"  # in the directory of a search
SEED = re.compile(r"(?i)\bseed(_\d+)?$")  # the name of an axis that only repeats runs
_REPLACED = (TABLE, SHEET, "objective.json", SEARCH, "report.html", "scaling.png")
_FIRST = ("name", "status", "fingerprint")
_LAST = ("attempts", "seconds", "last_words", "directives")
_WIDTH = 1000  # of a log that no terminal shows, so that a row stays in one line
_SECONDS = 2.0  # between two writes while nothing ends
_BETWEEN_LINES = 15.0  # seconds
FAILED = ("failed", "diverged")
TO_COME = ("waiting", "running", "stopped")
_STYLES = {"failed": "red", "diverged": "red", "finished": "green", "running": "bold"}
# What an earlier process recorded of a point.
_KEPT = ("step", "metrics", "attempts", "seconds", "last_words", "code", "status")


def read_table(directory: Path) -> list[Result]:
    """Return the rows of a sweep's results; none before anything was run.

    Raises:
      ConfigError: the table is damaged, or of something else.
    """
    path = directory / TABLE
    try:
        rows = [parse_json(line) for line in read_bytes(path).decode().split("\n") if line]
        return [row for row in rows if row["fingerprint"]]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path} is damaged, or no table of a sweep: {error}. Name another --run_dir; or "
            "remove the file, and give the command of the sweep again, which runs no point twice."
        ) from error


def claim(directory: Path) -> None:
    """Make the directory of a sweep or a search, or join one.

    Raises:
      ConfigError: it holds no sweep, but files that a sweep would replace.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / LOCK).exists() and not read_table(directory):
        if others := [name for name in _REPLACED if os.path.lexists(directory / name)]:
            raise ConfigError(
                f"{directory} holds no sweep, and one would replace {listed(others, most=3)} in "
                "it: name another --run_dir, such as one that does not exist yet."
            )
        (directory / LOCK).touch()


def write_table(directory: Path, rows: Sequence[Result]) -> None:
    """Write `table.jsonl`, and the same as a spreadsheet; the caller holds the lock."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_whole(directory / TABLE, lines)
    varying = [name for key in ("values", "metrics") for row in rows for name in row[key]]
    text, names = io.StringIO(), dict.fromkeys([*_FIRST, *varying, *_LAST])
    sheet = csv.DictWriter(text, names, restval="", extrasaction="ignore", lineterminator="\n")
    sheet.writeheader()
    for row in rows:
        own = row["values"] | row["metrics"]
        sheet.writerow(own | row | {"directives": " ".join(row["directives"])})
    write_whole(directory / SHEET, text.getvalue())


def new_row(job: Job) -> Result:
    """Return the row of a point that has not run."""
    point = job.point
    return {
        "name": point.name,
        "fingerprint": point.fingerprint,
        "status": "waiting",
        "directory": job.directory.name,
        "values": dict(point.values),
        "directives": list(point.directives),
        "parameters": point.cost.parameters,
        "num_steps": point.cost.num_steps,
        "step": 0,
        "metrics": {},
        "attempts": 0,
        "seconds": 0.0,
        "last_words": "",
        "code": None,
    }


def _resumed_row(job: Job, old: Mapping[str, Result]) -> Result:
    """Return the row of a job before it starts, with what earlier processes recorded."""
    earlier = old.get(job.point.fingerprint, {})
    row = new_row(job) | {key: earlier[key] for key in _KEPT if key in earlier}
    before = earlier.get("values", {})
    if row["values"].keys() < before.keys():  # an earlier sweep had more axes
        row["name"] = earlier["name"]
    row["values"] = {**before, **row["values"]}
    if job.is_done:
        metrics = {**row["metrics"], **job.result()}
        done = {"status": "finished", "step": job.point.cost.num_steps, "last_words": ""}
        return row | done | {"metrics": metrics}
    if row["status"] in ("running", "finished", "waiting"):  # as left by a process that was killed
        row["status"] = "stopped" if job.is_begun else "waiting"
    return row


class ResultsTable:
    """Keeps `table.jsonl` and `results.csv`: directives, fingerprint and metrics of every point.

    Rows of points that are not among the jobs, such as points with other values, stay. Each of
    several processes writes the rows of its own jobs, and takes over the others.

    Attributes:
      directory: of the sweep.
      jobs: the points that run now.
      rows: by fingerprint, the rows of the jobs first.
    """

    def __init__(self, directory: Path, jobs: Sequence[Job]) -> None:
        self.directory = directory
        self._started: dict[str, float] = {}
        self._written = 0.0
        old = {row["fingerprint"]: row for row in read_table(directory)}
        self.jobs = list(jobs)
        self.rows = {job.point.fingerprint: _resumed_row(job, old) for job in jobs}
        self._touched = {key for key, row in self.rows.items() if row != old.get(key)}
        self.rows = {**self.rows, **{key: old[key] for key in old if key not in self.rows}}

    def add(self, job: Job) -> None:
        """Add a job."""
        self.jobs.append(job)
        self.rows[job.point.fingerprint] = _resumed_row(job, self.rows)
        self._touched.add(job.point.fingerprint)

    def __iter__(self) -> Iterator[Result]:
        return map(self.row, self.jobs)

    def row(self, job: Job) -> Result:
        """Return the row of a job."""
        return self.rows[job.point.fingerprint]

    def started(self, job: Job) -> None:
        """Record the start of a process."""
        row = self.row(job)
        row |= {"status": "running", "last_words": "", "code": digest_of_sources()}
        row["attempts"] += 1
        self._started[job.point.fingerprint] = time.monotonic()
        self._touched.add(job.point.fingerprint)
        self.write()

    def progressed(self, job: Job, metrics: Mapping[str, Any]) -> None:
        """Record a row of metrics; a metric not measured at every step keeps its last value."""
        self.row(job).update(metrics={**self.row(job)["metrics"], **metrics}, step=metrics["step"])

    def ended(self, job: Job, ending: Ending) -> None:
        """Record the end of a process."""
        row = self.row(job)
        row |= {"status": ending.status, "last_words": secrets.redacted(ending.last_words)}
        if (started := self._started.pop(job.point.fingerprint, None)) is not None:
            row["seconds"] += round(time.monotonic() - started, 1)
        if ending.status == "finished":
            self.progressed(job, {**job.result(), "step": job.point.cost.num_steps})
        self._touched.add(job.point.fingerprint)
        self.write()

    def tick(self) -> None:
        """Write now and then."""
        if time.monotonic() - self._written > _SECONDS:
            self.write()

    def write(self) -> None:
        """Write both files atomically, merged with the rows of other processes."""
        self._written = time.monotonic()
        with (self.directory / LOCK).open("ab") as file:
            wait_for_lock(file)
            there = {row["fingerprint"]: row for row in read_table(self.directory)}
            done = {row["fingerprint"] for row in self if row["status"] == "finished"}
            kept = self._touched | done
            self.rows |= {key: row for key, row in there.items() if key not in kept}
            write_table(self.directory, list(self.rows.values()))
        self._touched = set(self._started)


def changed_code(table: ResultsTable) -> list[str]:
    """Return a warning if points of a sweep were run by another version of the code."""
    versions = (None, digest_of_sources())
    names = [row["name"] for row in table.rows.values() if row.get("code") not in versions]
    line = (
        f"{counted(len(names), 'point')} ran with another version of the code: "
        f"{listed(names, most=3)}. Finished points are not run again; name another --run_dir to "
        "start over. The environment.json of a run has its commit."
    )
    return [line] if names else []


def console_of_log() -> Console:
    """Return a console, as wide as the terminal; without one, so wide that rows stay in a line."""
    # A notebook's kernel claims to be a terminal.
    is_terminal = sys.stdout.isatty()
    console = Console(highlight=False, force_jupyter=False, force_terminal=is_terminal)
    if not is_terminal:
        console.width = shutil.get_terminal_size((_WIDTH, 0)).columns
    return console


def table(
    head: Sequence[str], rows: Iterable[Sequence[str | Text]], *, numbers: Collection[str] = ()
) -> Table:
    """Return a table whose columns of numbers are aligned to the right."""
    columns = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in head:
        columns.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        columns.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return columns


def results_table(rows: Iterable[Result], objective: Objective | None = None) -> Table:
    """Return the results of points, with the last words of those that failed."""
    rows = list(rows)
    names = dict.fromkeys([*reversed(objectives.USUAL), objective.name if objective else "loss"])
    shown = [name for name in names if any(name in row["metrics"] for row in rows)]
    words = ["last words"] if any(row["last_words"] for row in rows) else []
    lines: list[list[str | Text]] = []
    for row in rows:
        count = f" ({row['attempts']} attempts)" if row["attempts"] > 1 else ""
        status = Text(row["status"] + count, style=_STYLES.get(row["status"], ""))
        values = [row["metrics"].get(name) for name in shown]
        cells = [row["name"], row["fingerprint"][:12], status]
        cells += [f"{row['step']:,}/{row['num_steps']:,}"]
        cells += [f"{value:.4f}" if isinstance(value, int | float) else "-" for value in values]
        lines.append(cells + ([row["last_words"]] if words else []))
    numbers = ("step", *shown)
    return table(("point", "fingerprint", "status", *numbers, *words), lines, numbers=numbers)


def best(rows: Iterable[Result], objective: Objective | None = None) -> Result | None:
    """Return the best finished row, or the best of those that still run if none is finished."""
    rows = [row for row in rows if row["status"] not in FAILED]
    by = objective or objectives.usual(rows)
    rows = [row for row in rows if isinstance(row["metrics"].get(by.name), int | float)]
    rows = [row for row in rows if row["status"] == "finished"] or rows
    return min(rows, key=lambda row: by.sorted_by(row["metrics"][by.name]), default=None)


def name_without(row: Result, labels: Collection[str]) -> str:
    """Return the name of a point without its values on some axes."""
    dropped = {f"{label}={row['values'].get(label)}" for label in labels}
    return " ".join(w for w in row["name"].split(" ") if w not in dropped) or row["name"]


def tally(rows: Iterable[Result], count: int) -> str:
    """Return how many of so many points are done, and how many failed."""
    statuses = [row["status"] for row in rows]
    num_failed = sum(status in FAILED for status in statuses)
    failed = f", {num_failed} failed" if num_failed else ""
    return f"{statuses.count('finished')} of {count} done{failed}"


class Results(list[Result]):
    """The rows of a sweep, one for each point; displays itself in a notebook.

    Each is a dict with name, fingerprint, status, values (by axis), directives, metrics (the last
    of each), step, attempts, seconds and last_words.

    Args:
      rows: the rows.
      objective: what they are compared by; defaults to the held-out loss.
    """

    def __init__(self, rows: Sequence[Result], objective: Objective | None = None) -> None:
        super().__init__(rows)
        self._objective = objective

    def best(self, name: str | None = None) -> Result | None:
        """Return the best row by a metric, such as `max:tasks/arc_easy/acc`; None without any.

        Raises:
          ConfigError: the metric lacks a direction.
        """
        return best(self, objectives.objective_of(name) if name else self._objective)

    def __rich__(self) -> RenderableType:
        return Group(results_table(self, self._objective), Text(self._verdict()))

    def _verdict(self) -> str:
        """Return which point is the best, by the mean of the runs that repeat it."""
        by, groups = self._objective or objectives.usual(self), dict[Any, list[Result]]()
        for row in self:
            if row["status"] == "finished" and isinstance(row["metrics"].get(by.name), int | float):
                values = (item for item in row["values"].items() if not SEED.search(item[0]))
                groups.setdefault(frozenset(values), []).append(row)
        if not groups:
            return "no result yet"
        means = [
            (statistics.fmean(row["metrics"][by.name] for row in rows), rows)
            for rows in groups.values()
        ]
        mean, rows = min(means, key=lambda pair: by.sorted_by(pair[0]))
        count = f", the mean of {len(rows)} runs" if len(rows) > 1 else ""
        repeats = [label for label in rows[0]["values"] if SEED.search(label)]
        name = name_without(rows[0], repeats) if count else rows[0]["name"]
        return f"best: {name}, {by.name} {mean:.4f}{count}"

    def _repr_html_(self) -> str:
        return as_html(self)


def read_results(directory: str | Path) -> Results:
    """Return the results of a sweep, from its directory alone.

    Raises:
      ConfigError: no sweep has run there.
    """
    rows = read_table(Path(directory))
    if not rows:
        raise ConfigError(f"{directory} holds no sweep: there is no table.jsonl with rows in it.")
    return Results(rows, objectives.read_objective(Path(directory)))


def as_html(shown: Any) -> str:
    """Return what rich can show as HTML."""
    console = Console(file=io.StringIO(), record=True, width=160, highlight=False)
    console.print(shown)
    return console.export_html(
        inline_styles=True, code_format="<pre style='line-height:1.3'>{code}</pre>"
    )


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
        self._console = console or console_of_log()
        self._begin = 0.0  # of the first run
        self._flops = 0.0  # of all runs since then
        self._furthest: dict[str, int] = {}  # step of each run
        self._shown: dict[str, float] = {}
        self._live = Live(console=self._console, get_renderable=self._view, transient=True)

    def __enter__(self) -> Self:
        directory = self.table.directory
        claim(directory)
        for line in changed_code(self.table):
            self.log(f"warning: {line}")
        if self._objective is not None:
            objectives.write_objective(self._objective, directory)
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
        names = dict.fromkeys(["loss", (self._objective or objectives.usual([row])).name])
        numbers = [f"{name} {row['metrics'][name]:.4f}" for name in names if name in row["metrics"]]
        return ", ".join([f"step {row['step']:,}/{row['num_steps']:,}", *numbers])

    def _best(self, job: Job | None = None) -> str:
        """Return which point is best so far; of a job that has just ended, whether it is."""
        rows = [row for row in self.table if row["status"] == "finished"]
        by = self._objective or objectives.usual(rows)
        row = best(rows, by)
        if row is not None and job is not None and row["fingerprint"] == job.point.fingerprint:
            return "; the best so far"
        return f"; best so far {row['name']} with {row['metrics'][by.name]:.4f}" if row else ""

    def _view(self) -> Group:
        """Return the live table, and a line about all points."""
        running = [row for row in self.table if row["status"] == "running"]
        text = tally(self.table, self._num_jobs) + self._left() + self._best()
        return Group(results_table(running, self._objective), Text(text))

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
