"""Trackers of metrics."""

import contextlib
import errno
import json
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fidgpt.files import sync
from fidgpt.train.facts import Facts
from fidgpt.train.run_directory import RunDirectory, RunError, print_stderr, resume_flag

Row = dict[str, Any]
_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_NUMBERS = {name: float(name) for name in _NAMES.values()}
_OF_THE_MACHINE = ("tokens_per_second", "utilisation", "memory")


@runtime_checkable
class Tracker(Protocol):
    """Hears of a run as it happens, on its main process alone."""

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        """The run begins, or goes on after `step` steps."""
        ...

    def log(self, row: Row) -> None:
        """One step is done: `step`, `loss` and whatever else was measured."""
        ...

    def print(self, text: str) -> None:
        """Something for a person to read."""
        ...

    def finish(self) -> None:
        """The run is over, whether it got to its end or not."""
        ...


class JSONLines:
    """Appends one row a step to `metrics.jsonl` in the run directory, floats at full precision.

    A run that goes on after a kill drops the rows of steps that its checkpoint does not know, so
    the file reads as if nothing had happened; and so does one that goes back by itself. A file
    that somebody removes or replaces during the run, as an editor does, is written anew with all
    its rows; one that is cut, as `logrotate` does with `copytruncate`, goes on by whole rows.
    """

    def __init__(self) -> None:
        self._file: Any = None
        self._folder: os.stat_result | None = None
        self._last = 0
        self._size = 0

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        path = run.path / "metrics.jsonl"
        with _explained(path):
            self._open(path, after=step)

    def log(self, row: Row) -> None:
        path = Path(self._file.name)
        if row["step"] <= self._last:
            with _explained(path):
                self._file.close()
                self._open(path, after=row["step"] - 1)
        self._last = row["step"]
        line = _line(row).encode()
        with _explained(path):
            self._bring_back(path)
            self._end_line(path, step=row["step"])
            while line:
                line = line[self._file.write(line) :]
            self._size = self._file.tell()

    def _open(self, path: Path, *, after: int) -> None:
        num_kept = _keep_until(path, after) if path.exists() else 0
        if num_kept < after:
            lost = f"{after - num_kept:,} of the {after:,} steps so far"
            print_stderr(f"warning: {path} has no rows of {lost}; the run itself is whole.")
        # Unbuffered: what could not be written is not tried again as the file is closed.
        self._file = path.open("a+b", buffering=0)
        self._folder = path.parent.stat()
        self._last = after
        self._size = os.fstat(self._file.fileno()).st_size

    def _bring_back(self, path: Path) -> None:
        """Writes the file anew where it was taken away: what is open still has all of it.

        Where the whole folder went, it does not: the next checkpoint says so.
        """
        if _is(path, os.fstat(self._file.fileno())) or not _is(path.parent, self._folder):
            return
        self._file.seek(0)
        _replace(path, self._file.read())
        self._file.close()
        self._file = path.open("a+b", buffering=0)
        self._size = os.fstat(self._file.fileno()).st_size
        print_stderr(
            f"warning: {path} was removed or replaced by another file: all of it is there again."
        )

    def _end_line(self, path: Path, *, step: int) -> None:
        """Begins a line where somebody cut the file, or wrote into it, and left half of one."""
        size = os.fstat(self._file.fileno()).st_size
        if size < self._size:
            print_stderr(
                f"warning: {path} was cut short by {self._size - size:,} bytes: rows before step "
                f"{step} are lost there; the run itself is whole, and later rows follow."
            )
        if size != self._size and size > 0:
            self._file.seek(size - 1)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def print(self, text: str) -> None:
        """Text is no metric."""

    def finish(self) -> None:
        if self._file is not None:
            self._file.close()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "make room" if is_full else "see to it that it can be"
        raise RunError(
            f"{path} cannot be written ({error.strerror}): {remedy}, then go on with "
            f"{resume_flag(path.parent)}."
        ) from error


def reproducible(row: Row) -> Row:
    """What of a row is the same whenever the step is done again, on whatever machine's mood."""
    return {
        name: value
        for name, value in row.items()
        if name not in _OF_THE_MACHINE and not name.startswith("seconds/")
    }


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics file, but for lines that are none, as one that a kill cut short."""
    rows = map(_row, path.read_bytes().split(b"\n"))
    return [row for row in rows if row is not None]


def _line(row: Row) -> str:
    """A row as strict JSON, which has no word for infinities and what is no number."""
    plain = {name: _NAMES.get(repr(value), value) for name, value in row.items()}
    return json.dumps(plain, allow_nan=False) + "\n"


def _row(line: bytes) -> Row | None:
    """What a line of a metrics file says; None where it is no row."""
    try:
        row: Any = json.loads(line, object_hook=_with_numbers)
    except ValueError:  # no JSON, or no UTF-8
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _with_numbers(row: Row) -> Row:
    return {
        name: _NUMBERS.get(value, value) if isinstance(value, str) else value
        for name, value in row.items()
    }


def _keep_until(path: Path, step: int) -> int:
    """Drops the rows of later steps; returns how many steps have one."""
    kept = [row for row in read_rows(path) if row["step"] <= step]
    _set_aside_damaged(path)
    _replace(path, "".join(map(_line, kept)).encode())
    return len({row["step"] for row in kept})


def _replace(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_bytes(content)
        sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _is(path: Path, known: os.stat_result | None) -> bool:
    """Whether what lies there is the very file or folder that was known."""
    try:
        return known is not None and os.path.samestat(path.stat(), known)
    except FileNotFoundError:
        return False


def _set_aside_damaged(path: Path) -> None:
    """Keeps lines that cannot be read in a file of their own; a cut end is what a kill leaves."""
    *lines, _ = path.read_bytes().split(b"\n")
    damaged = [number for number, line in enumerate(lines, start=1) if _row(line) is None]
    if not damaged:
        return
    aside = path.with_suffix(f".damaged{path.suffix}")
    with aside.open("ab") as file:
        file.writelines(lines[number - 1] + b"\n" for number in damaged)
    which = f"line {damaged[0]}" if len(damaged) == 1 else f"{len(damaged)} lines"
    print_stderr(
        f"warning: {which} of {path} cannot be read, and was moved to {aside.name}; all other "
        "rows are as they were."
    )


class Journal:
    """Lets a run that goes on continue what a tracker has, and tell it nothing twice.

    Attributes:
      id: what the tracker knows the run by.
      step: the last step that the tracker was told.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.id, self.step = str(kept["id"]), int(kept["step"])
        except (OSError, ValueError, KeyError, TypeError):  # none yet, or one that a crash cut
            self.id, self.step = _new_id(), 0

    def begin_anew(self, *, step: int) -> None:
        """What comes after `step` belongs to another run of the tracker's."""
        self.write(step=step, identity=_new_id())

    def write(self, *, step: int, identity: str | None = None) -> None:
        """Keeps the step, and the id where the tracker gives its own; whole or not at all."""
        with self._writing:  # a run that goes back writes, too, not only the tracker's thread
            self.id, self.step = identity or self.id, step
            temporary = self._path.with_suffix(".tmp")
            self._path.parent.mkdir(exist_ok=True)
            kept = {"id": self.id, "step": step}
            temporary.write_text(json.dumps(kept) + "\n", encoding="utf-8")
            sync(temporary)  # else a loss of power leaves it empty: another run for the tracker
            os.replace(temporary, self._path)


def _new_id() -> str:
    return uuid.uuid4().hex[:12]
