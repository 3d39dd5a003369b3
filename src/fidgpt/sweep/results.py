"""The results of a sweep: read, written and locked."""

import contextlib
import csv
import functools
import hashlib
import io
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fidgpt
from fidgpt.files import wait_for_lock, write_whole
from fidgpt.sweep.runners.attempt import Ending, Job

Result = dict[str, Any]
TABLE, SHEET, LOCK = "table.jsonl", "results.csv", ".table.lock"
_FIRST = ("name", "status", "fingerprint")
_LAST = ("attempts", "seconds", "last_words", "directives")
_TYPES = {
    **dict.fromkeys(("name", "fingerprint", "status", "directory", "last_words"), str),
    **dict.fromkeys(("values", "metrics"), dict),
    **dict.fromkeys(("num_steps", "step", "attempts"), int),
    "directives": list,
    "seconds": int | float,
}


def read_table(directory: Path) -> list[Result]:
    """The rows of a sweep's results; none where nothing was run yet.

    A line that is no row, as where somebody cut the file, is passed over.
    """
    rows = (_row(line) for line in _lines(directory))
    return [row for row in rows if row is not None]


def num_damaged(directory: Path) -> int:
    """How many lines of a sweep's results are no rows."""
    return sum(_row(line) is None for line in _lines(directory))


def write_table(directory: Path, rows: Sequence[Result]) -> None:
    """Writes `table.jsonl`, and the same for a spreadsheet; the caller is `alone`."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_whole(directory / TABLE, lines)
    write_whole(directory / SHEET, sheet(rows))


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """While entered, no other process writes the results of a sweep."""
    with (directory / LOCK).open("ab") as file:
        wait_for_lock(file)
        yield


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


def _lines(directory: Path) -> list[str]:
    try:
        text = (directory / TABLE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.split("\n") if line]


def _row(line: str) -> Result | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    is_row = isinstance(row, dict) and all(
        isinstance(row.get(key), kind) for key, kind in _TYPES.items()
    )
    return row if is_row else None


@functools.cache
def code_version() -> str:
    """A hash of fidgpt's own sources, 12 hexadecimal digits: the same for the same code."""
    folder = Path(fidgpt.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def changed_code(rows: Iterable[Mapping[str, Any]], sweep: Path) -> list[str]:
    """A line for each other version of the code that points were run by, with its commit.

    Args:
      rows: the results of the points that were run before.
      sweep: the directory of the sweep.
    """
    others: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row.get("code") not in (None, code_version()):
            others.setdefault(row["code"], []).append(row)
    return [
        f"{_counted(len(made))} run by another version of the code ({_commit(sweep, made[0])}): "
        f"{', '.join(row['name'] for row in made[:3])}{', ...' if len(made) > 3 else ''}. "
        "What is done is not done again; name another --run_dir to begin anew."
        for made in others.values()
    ]


def _counted(count: int) -> str:
    return "1 point was" if count == 1 else f"{count} points were"


def _commit(sweep: Path, row: Mapping[str, Any]) -> str:
    """The commit that the run of a row keeps, with whether more was changed."""
    try:
        kept = json.loads((sweep / row["directory"] / "environment.json").read_text())["git"]
        return f"{kept['commit'][:10]}{', with changes' if kept['changes'] else ''}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"sources {row['code']}"


_SECONDS = 2.0  # between two writings, while nothing ends
# What an earlier process knew of a point.
_KEPT = ("step", "metrics", "attempts", "seconds", "last_words", "code", "status")


class ResultsTable:
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
        self.rows = {job.point.fingerprint: _table_row(job, old) for job in jobs}
        self._touched = {key for key, row in self.rows.items() if row != old.get(key)}
        self.rows |= {key: row for key, row in old.items() if key not in self.rows}

    def add(self, job: Job) -> None:
        """Takes in a job that nobody knew of before."""
        self.jobs.append(job)
        self.rows[job.point.fingerprint] = _table_row(job, self.rows)
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


def _table_row(job: Job, old: Mapping[str, Result]) -> Result:
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
