"""The results of a sweep as plain files: one row a point, true at any moment."""

import contextlib
import csv
import fcntl
import io
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fidgpt.sweep.runners.job import Ending, Job
from fidgpt.sweep.versions import code_version

Result = dict[str, Any]
TABLE, SHEET, LOCK = "table.jsonl", "results.csv", ".table.lock"
_SECONDS = 2.0  # between two writings, while nothing ends
_FIRST = ("name", "status", "fingerprint")
_LAST = ("attempts", "seconds", "last_words", "directives")


class Book:
    """Keeps `table.jsonl` and `results.csv`: every point's directives, fingerprint and numbers.

    Rows of points that are not among the jobs, as of a sweep that had other values once, stay.

    Attributes:
      jobs: the points that run now.
      rows: by fingerprint, those of the jobs first.
    """

    def __init__(self, directory: Path, jobs: Sequence[Job]) -> None:
        self._directory = directory
        self._begun: dict[str, float] = {}
        self._written = 0.0
        old = {row["fingerprint"]: row for row in read_table(directory)}
        self.jobs = list(jobs)
        self.rows = {job.point.fingerprint: _row(job, old) for job in jobs}
        self.rows |= {key: row for key, row in old.items() if key not in self.rows}

    def add(self, job: Job) -> None:
        """Takes in a job that nobody knew of before."""
        self.jobs.append(job)
        self.rows[job.point.fingerprint] = _row(job, self.rows)

    def __iter__(self) -> Iterator[Result]:
        return map(self.row, self.jobs)

    def row(self, job: Job) -> Result:
        """The row of a job."""
        return self.rows[job.point.fingerprint]

    def started(self, job: Job) -> None:
        """A process of the job was started."""
        row = self.row(job)
        row |= {"status": "running", "last_words": "", "code": code_version()}
        row["attempts"] += 1
        self._begun[job.point.fingerprint] = time.monotonic()
        self.write()

    def progressed(self, job: Job, metrics: Mapping[str, Any]) -> None:
        """A row of metrics was read; what is not measured at every step stays from before."""
        row = self.row(job)
        row["metrics"] = {**row["metrics"], **metrics}
        row["step"] = metrics["step"]

    def ended(self, job: Job, ending: Ending) -> None:
        """A process of the job ended."""
        row = self.row(job)
        row |= {"status": ending.status, "last_words": ending.last_words}
        begun = self._begun.pop(job.point.fingerprint, None)
        row["seconds"] += 0.0 if begun is None else round(time.monotonic() - begun, 1)
        if ending.status == "finished":
            row["metrics"] = {**row["metrics"], **job.result()}
            row["step"] = job.point.cost.num_steps
        self.write()

    def tick(self) -> None:
        """Writes now and then."""
        if time.monotonic() - self._written > _SECONDS:
            self.write()

    def write(self) -> None:
        """Writes both files, each whole or not at all, with what others wrote there."""
        own = {job.point.fingerprint for job in self.jobs}
        with _alone(self._directory):
            others = {row["fingerprint"]: row for row in read_table(self._directory)}
            self.rows |= {key: row for key, row in others.items() if key not in own}
            rows = list(self.rows.values())
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            _write(self._directory / TABLE, lines)
            _write(self._directory / SHEET, sheet(rows))
        self._written = time.monotonic()


def read_table(directory: Path) -> list[Result]:
    """The rows of a sweep's results; none where nothing was run yet."""
    path = directory / TABLE
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def sheet(rows: Sequence[Result]) -> str:
    """Rows as a table for a spreadsheet: a column for each axis, and for each metric."""
    axes = list(dict.fromkeys(label for row in rows for label in row["values"]))
    metrics = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_FIRST, *axes, *metrics, *_LAST])
    for row in rows:
        plain = row | {"directives": " ".join(row["directives"])}
        writer.writerow(
            [plain[key] for key in _FIRST]
            + [row["values"].get(label, "") for label in axes]
            + [row["metrics"].get(name, "") for name in metrics]
            + [plain[key] for key in _LAST]
        )
    return text.getvalue()


def _row(job: Job, old: Mapping[str, Result]) -> Result:
    """The row of a job before it is started, with what is known from before."""
    point = job.point
    fresh: Result = {
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
    known = old.get(point.fingerprint, {})
    kept = ("step", "metrics", "attempts", "seconds", "last_words", "code", "status")
    row = fresh | {key: known[key] for key in kept if key in known}
    if job.is_done:
        metrics = {**row["metrics"], **job.result()}
        return row | {"status": "finished", "step": point.cost.num_steps, "metrics": metrics}
    begun = (job.directory / "config.json").exists()
    if row["status"] in ("running", "finished", "waiting"):  # as somebody wrote who was killed
        row["status"] = "stopped" if begun else "waiting"
    return row


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """While entered, no other process writes the results of a sweep."""
    with (directory / LOCK).open("ab") as file:
        with contextlib.suppress(OSError):  # a file system that knows no locks keeps nobody out
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
