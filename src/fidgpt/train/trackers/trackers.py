"""What trackers do, and the record of metrics that every run keeps."""

import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fidgpt.files import atomic_path, sync, write_whole
from fidgpt.train.facts import Facts
from fidgpt.train.run_directory import RunDirectory, RunError, cannot_write, print_stderr

__all__ = ["JSONLines", "Tracker"]

Row = dict[str, Any]
_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_NUMBERS = {name: float(name) for name in _NAMES.values()}
_MACHINE_DEPENDENT = ("tokens_per_second", "utilisation", "memory")


@runtime_checkable
class Tracker(Protocol):
    """Receives what happens in a run, on its main process only."""

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        """Called before the first step, or before a resumed run continues after `step`."""
        ...

    def log(self, row: Row) -> None:
        """Log the metrics of one step: `step`, `loss` and others."""
        ...

    def print(self, text: str) -> None:
        """Show a text to the user."""
        ...

    def finish(self) -> None:
        """Called at the end of the run, however it ended."""
        ...


class JSONLines:
    """Appends a row per step to `metrics.jsonl` in the run directory, with exact floats.

    A run that is resumed or rolled back drops the rows of steps after its checkpoint, so that the
    file reads as if nothing had happened. If the file is removed, replaced or cut during the run,
    later rows go to what is there then.
    """

    def __init__(self) -> None:
        self._path = Path()
        self._last = 0

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        self._path = run.path / "metrics.jsonl"
        with self._explained():
            self._begin(after=step)

    def log(self, row: Row) -> None:
        with self._explained():
            if row["step"] <= self._last:
                self._begin(after=row["step"] - 1)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_line(row))
        self._last = row["step"]

    def print(self, text: str) -> None:
        """Ignore texts, which are not metrics."""

    def finish(self) -> None:
        """Do nothing: every row is in the file."""

    def _begin(self, *, after: int) -> None:
        path = self._path
        steps = _keep_until(path, after) if path.exists() else set()
        if len(steps) < after:
            lost = f"{after - len(steps):,} of the {after:,} steps so far"
            print_stderr(f"warning: {path} has no rows of {lost}; the run itself is whole.")
        self._last = after

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = cannot_write(self._path, error, run=self._path.parent)
            raise RunError(f"{text}.") from error


def reproducible(row: Row) -> Row:
    """Return the metrics of a row that do not depend on the speed or memory of the machine."""
    return {
        name: value
        for name, value in row.items()
        if name not in _MACHINE_DEPENDENT and not name.startswith("seconds/")
    }


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a metrics file, without damaged lines, such as one cut by a kill."""
    rows = map(_row, path.read_bytes().split(b"\n"))
    return [row for row in rows if row is not None]


def _line(row: Row) -> str:
    """Format a row as strict JSON, which has no infinities and NaN."""
    plain = {name: _NAMES.get(repr(value), value) for name, value in row.items()}
    return json.dumps(plain, allow_nan=False) + "\n"


def _row(line: bytes) -> Row | None:
    """Parse a line of a metrics file; None if it is damaged."""
    try:
        row: Any = json.loads(line, object_hook=_with_numbers)
    except ValueError:  # not JSON, or not UTF-8
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _with_numbers(row: Row) -> Row:
    return {k: _NUMBERS.get(v, v) if isinstance(v, str) else v for k, v in row.items()}


def _keep_until(path: Path, step: int) -> set[int]:
    """Drop the rows of later steps, move damaged lines aside, and return the steps that remain."""
    *lines, _ = path.read_bytes().split(b"\n")  # the last one is empty, or cut by a kill
    kept = [row for row in read_rows(path) if row["step"] <= step]
    if damaged := [number for number, line in enumerate(lines, 1) if _row(line) is None]:
        aside = path.with_suffix(f".damaged{path.suffix}")
        with aside.open("ab") as file:
            file.writelines(lines[number - 1] + b"\n" for number in damaged)
        which = f"line {damaged[0]}" if len(damaged) == 1 else f"{len(damaged)} lines"
        print_stderr(
            f"warning: {which} of {path} cannot be read, and was moved to {aside.name}; all other "
            "rows are as they were."
        )
    with atomic_path(path) as draft:
        draft.write_text("".join(map(_line, kept)), encoding="utf-8")
        sync(draft)
    return {row["step"] for row in kept}


class Journal:
    """Lets a resumed run continue what a tracker has, and deliver nothing twice.

    Attributes:
      id: of the run in the tracker.
      step: the last step delivered to the tracker.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()  # a roll-back writes too, not only the tracker's thread
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.id, self.step = str(kept["id"]), int(kept["step"])
        except (OSError, ValueError, KeyError, TypeError):  # none yet, or cut by a crash
            self.id, self.step = _new_id(), 0

    def start_new(self, *, step: int) -> None:
        """Let what follows `step` be a new run of the tracker."""
        self.write(step=step, identity=_new_id())

    def write(self, *, step: int, identity: str | None = None) -> None:
        """Keep the step, and the id if the tracker assigned another one."""
        with self._writing:
            self.id, self.step = identity or self.id, step
            self._path.parent.mkdir(exist_ok=True)
            write_whole(self._path, json.dumps({"id": self.id, "step": step}) + "\n")


def _new_id() -> str:
    return uuid.uuid4().hex[:12]
