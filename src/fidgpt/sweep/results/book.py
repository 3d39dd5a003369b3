"""The results of a sweep as plain files: one row a point, true at any moment."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fidgpt.sweep.results.files import Result, alone, num_damaged, read_table, write_table
from fidgpt.sweep.results.versions import code_version
from fidgpt.sweep.runners.job import Ending, Job

_SECONDS = 2.0  # between two writings, while nothing ends
# What an earlier process knew of a point.
_KEPT = ("step", "metrics", "attempts", "seconds", "last_words", "code", "status")


class Book:
    """Keeps `table.jsonl` and `results.csv`: every point's directives, fingerprint and numbers.

    Rows of points that are not among the jobs, as of a sweep that had other values once, stay. Of
    several processes each writes the rows in which something has happened to it, and takes over
    the others.

    Attributes:
      jobs: the points that run now.
      rows: by fingerprint, those of the jobs first.
      trouble: why the files could not be written when that was tried last; None if they were.
      num_damaged: lines of the table that were no rows, and are made anew.
    """

    def __init__(self, directory: Path, jobs: Sequence[Job]) -> None:
        self._directory = directory
        self._begun: dict[str, float] = {}
        self._written = 0.0
        self.trouble: str | None = None
        self.num_damaged = num_damaged(directory)
        old = {row["fingerprint"]: row for row in read_table(directory)}
        self.jobs = list(jobs)
        self.rows = {job.point.fingerprint: _row(job, old) for job in jobs}
        self._touched = {key for key, row in self.rows.items() if row != old.get(key)}
        self.rows |= {key: row for key, row in old.items() if key not in self.rows}

    def add(self, job: Job) -> None:
        """Takes in a job that nobody knew of before."""
        self.jobs.append(job)
        self.rows[job.point.fingerprint] = _row(job, self.rows)
        self._touched.add(job.point.fingerprint)

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
        self._touched.add(job.point.fingerprint)
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
        self._touched.add(job.point.fingerprint)
        self.write()

    def tick(self) -> None:
        """Writes now and then."""
        if time.monotonic() - self._written > _SECONDS:
            self.write()

    def write(self) -> None:
        """Writes both files, each whole or not at all, with what others wrote there.

        Where that cannot be done, as on a full disk, `trouble` says why, and the next time is
        as good.
        """
        self._written = time.monotonic()
        try:
            with alone(self._directory):
                there = {row["fingerprint"]: row for row in read_table(self._directory)}
                done = {row["fingerprint"] for row in self if row["status"] == "finished"}
                kept = self._touched | done
                self.rows |= {key: row for key, row in there.items() if key not in kept}
                write_table(self._directory, list(self.rows.values()))
        except OSError as error:
            self.trouble = f"the results in {self._directory} cannot be written: {error.strerror}."
            return
        self.trouble = None
        self._touched = set(self._begun)


def _row(job: Job, old: Mapping[str, Result]) -> Result:
    """The row of a job before it is started, with what is known from before."""
    known = old.get(job.point.fingerprint, {})
    row = _fresh(job) | {key: known[key] for key in _KEPT if key in known} | _named(job, known)
    if job.is_done:
        metrics = {**row["metrics"], **job.result()}
        done = {"status": "finished", "step": job.point.cost.num_steps, "last_words": ""}
        return row | done | {"metrics": metrics}
    if row["status"] in ("running", "finished", "waiting"):  # as somebody wrote who was killed
        row["status"] = "stopped" if job.is_begun else "waiting"
    return row


def _named(job: Job, known: Mapping[str, Any]) -> Result:
    """What a point is called, and what it has on each axis, those of earlier sweeps included."""
    name, values, before = job.point.name, job.point.values, known.get("values", {})
    if values.keys() < before.keys():
        name = known["name"]
    return {"name": name, "values": {**before, **values}}


def _fresh(job: Job) -> Result:
    """The row of a job of which nothing is known."""
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
