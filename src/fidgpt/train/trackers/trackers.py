"""What trackers do, the record of metrics that every run keeps, and trackers in the background."""

import abc
import ast
import contextlib
import importlib.util
import json
import os
import threading
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from fidgpt.files import atomic_path, read_bytes, read_json, sync, write_whole
from fidgpt.train.estimates.facts import Facts
from fidgpt.train.run_directory import RunDirectory, RunError, cannot_write, print_stderr

__all__ = ["BackgroundTracker", "JSONLines", "Tracker"]

Row = dict[str, Any]
_LARGEST = 1 << 30  # bytes of a file of metrics that is read at once
_TAIL = 1 << 20  # bytes at its end that hold the last row
_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_NUMBERS = {name: float(name) for name in _NAMES.values()}


@runtime_checkable
class Tracker(Protocol):
    """Receives what happens in a run, on its main process only."""

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        """Called before the first step, or before a run continues after `step`.

        A run that resumes, or returns to an earlier checkpoint, logs the later steps again.
        """

    def log(self, row: Row) -> None:
        """Log the metrics of one step: `step`, `loss` and others."""

    def print(self, text: str) -> None:
        """Show a text to the user; most trackers show none."""

    def finish(self) -> None:
        """Called at the end of the run, however it ended."""


class JSONLines(Tracker):
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

    def _begin(self, *, after: int) -> None:
        if self._path.exists():
            _keep_until(self._path, after)
        self._last = after

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = cannot_write(self._path, error, run=self._path.parent)
            raise RunError(f"{text}.") from error


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a metrics file, without damaged lines, such as one cut by a kill."""
    rows = map(_row, read_bytes(path, most=_LARGEST).split(b"\n"))
    return [row for row in rows if row is not None]


def last_row(path: Path) -> Row:
    """Return the last whole row of a metrics file; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            rows = map(_row, reversed(file.read(_TAIL).split(b"\n")))
            return next((row for row in rows if row is not None), {})
    except OSError:
        return {}


def _line(row: Row) -> str:
    """Format a row as strict JSON, which has no infinities and NaN."""
    plain = {name: _NAMES.get(repr(value), value) for name, value in row.items()}
    return json.dumps(plain, allow_nan=False) + "\n"


def _row(line: bytes) -> Row | None:
    """Parse a line of a metrics file; None if it is damaged."""
    try:
        row: Any = json.loads(line, object_hook=_with_numbers)
    except (ValueError, RecursionError):  # not JSON, or not UTF-8
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _with_numbers(row: Row) -> Row:
    return {k: _NUMBERS.get(v, v) if isinstance(v, str) else v for k, v in row.items()}


def _keep_until(path: Path, step: int) -> None:
    """Drop the rows of later steps, and lines that are cut.

    Line by line: a run of a million steps has more rows than memory should hold.
    """
    with path.open("rb") as file, atomic_path(path) as draft:
        with draft.open("wb") as kept:
            for line in file:
                row = _row(line)
                if row is not None and row["step"] <= step:
                    kept.write(line if line.endswith(b"\n") else line + b"\n")
        sync(draft)


class Journal:
    """Lets a resumed run continue what a tracker has, and deliver nothing twice.

    Attributes:
      id: of the run in the tracker.
      step: the last step delivered to the tracker.
    """

    def __init__(self, path: Path) -> None:
        kept = read_json(path)
        self._path = path
        self.id, self.step = str(kept.get("id") or _new_id()), int(kept.get("step", 0))

    def start_new(self, *, step: int) -> None:
        """Let what follows `step` be a new run of the tracker."""
        self.id = _new_id()
        self.write(step=step)

    def write(self, *, step: int) -> None:
        """Keep the last step that was delivered."""
        self.step = step
        self._path.parent.mkdir(exist_ok=True)
        write_whole(self._path, json.dumps({"id": self.id, "step": step}) + "\n")


def _new_id() -> str:
    return uuid.uuid4().hex[:12]


GROUP = "FIDGPT_GROUP"  # set by a sweep for its points, or by users for runs that belong together
Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class RunDescription:
    """A run as a tracker shows it.

    Attributes:
      path: its directory.
      name: the name of its directory.
      group: what it belongs to, such as a sweep; None if it stands alone.
      config: every value of the graph by its path, and facts about the run under `run/`.
    """

    path: Path
    name: str
    group: str | None
    config: Mapping[str, Scalar]


def describe_run(run: RunDirectory, facts: Facts) -> RunDescription:
    """Describe a run by its directory; files missing there are left out."""
    command = run.path / "command.txt"
    whole: dict[str, Scalar] = {
        "run/directory": str(run.path.resolve()),
        "run/command": read_bytes(command).decode().strip() if command.exists() else "",
        "run/git_commit": read_json(run.path / "environment.json").get("git", {}).get("commit"),
        "run/parameters": facts.parameters.total,
        "run/tokens": facts.tokens,
        "run/device": facts.cluster.device.kind,
        "run/world_size": facts.cluster.size,
    }
    return RunDescription(
        path=run.path,
        name=run.path.resolve().name,
        group=os.environ.get(GROUP) or None,
        # The root of the graph has no path, and MLflow needs a name for every value.
        config={path or "trainer": _value(text) for path, text in run.identity.items()}
        | {name: value for name, value in whole.items() if value not in (None, "")},
    )


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numeric metrics of a row, without the step."""
    return {
        key: value
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and key != "step"
    }


def texts(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts that the model wrote at a step, by name."""
    return {f"samples/{number}": text for number, text in enumerate(row.get("samples", ()))}


def _value(text: str) -> Scalar:
    """Return a number if the text is one, so that a tracker can sort by it."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, Scalar) else text


PERIOD = 1.0  # seconds over which rows are gathered before they are written
PAUSE = 30.0  # seconds after a failure before the tracker is opened again
PATIENCE = 30.0  # seconds for the last rows, once the run is over
ROWS = 10_000  # that wait at most; the oldest are dropped first


class BackgroundTracker(Tracker, abc.ABC):
    """Hands rows to a thread, which opens the tracker, writes to it and closes it.

    While the tracker is down, rows wait and opening is retried. A resumed run sends the rows of
    `metrics.jsonl` that the tracker lacks. A row is recorded as delivered before it is: a kill may
    lose the rows of the last second or two, but duplicates none. A run that is resumed with another
    config from before the last delivered step, or that rolls back, becomes a new run there.

    Attributes:
      title: the name of the service.
      extra: the extra of fidgpt that installs it.
      packages: that must be importable.
    """

    title: ClassVar[str]
    extra: ClassVar[str]
    packages: ClassVar[Sequence[str]]

    def __init__(self, *, destination: str) -> None:
        # Two trackers of a kind may have two destinations.
        self._file = f"{self.extra}-{zlib.crc32(destination.encode()):08x}.json"
        self._rows: deque[Row] = deque(maxlen=ROWS)
        self._last = self._delivered = 0
        self._news: deque[str] = deque()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_open = self._is_down = False
        self._place = ""

    @abc.abstractmethod
    def open(self, run: RunDescription, journal: Journal) -> str:
        """Start the run, or continue after `journal.step`; return where users find it."""

    @abc.abstractmethod
    def write(self, rows: Sequence[Row]) -> None:
        """Write rows in order; they are delivered when this returns."""

    @abc.abstractmethod
    def close(self) -> None:
        """End what `open` began, even if it failed."""

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        """Start the thread, first with the rows until `step` that the tracker lacks."""
        self._journal = Journal(run.path / "tracking" / self._file)
        if run.changes and self._journal.step > step:
            self._journal.start_new(step=step)
        self._last, self._delivered = 0, self._journal.step
        metrics = run.path / "metrics.jsonl"
        if self._delivered < step and metrics.exists():
            for row in read_rows(metrics):
                if row["step"] <= step:
                    self.log(row)
        self._thread = threading.Thread(
            target=self._work, args=[describe_run(run, facts)], name=self.extra, daemon=True
        )
        self._thread.start()

    def log(self, row: Row) -> None:
        """Queue a row for the thread, unless it was delivered before a resume."""
        if row["step"] <= self._last:  # the run rolled back
            self._delivered = 0
        self._last = row["step"]
        if self._last > self._delivered:
            self._rows.append(row)

    def news(self) -> list[str]:
        """Return lines for the console, each once."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def finish(self) -> None:
        """Wait for the last rows, but not for a tracker that does not answer."""
        self._over.set()
        if self._thread is None:
            return
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._news.append(f"{self.title} did not stop within {PATIENCE:.0f} s: abandoned.")
        if self._rows:
            self._news.append(
                f"{self.title} never got {len(self._rows):,} rows; metrics.jsonl has all."
            )

    def _work(self, run: RunDescription) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(PAUSE if self._is_down else PERIOD if self._is_open else 0)
            try:
                if not run.path.is_dir():  # a tracker might create it again
                    raise FileNotFoundError("the run's directory is gone")
                self._open(run)
                while self._rows:
                    if (step := self._rows[0]["step"]) <= self._journal.step:  # a roll-back
                        self._close()
                        self._journal.start_new(step=step - 1)
                        self._open(run)
                    self._deliver()
            except Exception as error:  # libraries and servers raise anything
                if not self._is_down:
                    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
                    self._news.append(
                        f"warning: {self.title} is down ({reason}): the run continues without it, "
                        f"its rows are queued, and it is retried every {PAUSE:.0f} s."
                    )
                self._is_down = True
                self._close()
        self._close()

    def _open(self, run: RunDescription) -> None:
        if not self._is_open:
            self._journal.write(step=self._journal.step)  # keeps the id if `open` is killed
            place = self.open(run, self._journal)
            if place != self._place:
                self._news.append(f"{self.title}: {place}")
            self._is_open, self._place = True, place

    def _deliver(self) -> None:
        """Write the rows that wait, up to the next roll-back."""
        rows, before = [*self._rows], self._journal.step
        falls = (n for n in range(1, len(rows)) if rows[n]["step"] <= rows[n - 1]["step"])
        rows = rows[: next(falls, None)]
        self._journal.write(step=rows[-1]["step"])
        try:
            self.write(rows)
        except Exception:
            self._journal.write(step=before)
            raise
        for row in rows:  # some of which may be dropped by now
            if self._rows[0] is row:
                self._rows.popleft()
        if self._is_down:
            self._is_down = False
            self._news.append(f"{self.title} is back and has caught up.")

    def _close(self) -> None:
        self._is_open = False
        try:
            self.close()
        except Exception as error:
            if not self._is_down:
                self._news.append(f"warning: {self.title} failed to close: {error}")


def require_packages(trackers: Sequence[Tracker]) -> None:
    """Raise RunError if a tracker's package is not installed, before anything is written."""
    for tracker in trackers:
        if isinstance(tracker, BackgroundTracker):
            missing = [name for name in tracker.packages if importlib.util.find_spec(name) is None]
            if missing:
                raise RunError(
                    f"{type(tracker).__name__} needs the package {missing[0]}, which is not "
                    f'installed. Install it with: pip install "fidgpt[{tracker.extra}]"'
                )


class Trackers:
    """Several trackers as one, a context that finishes them.

    One that raises is reported once, on stderr if no console shows it, and then dropped. RunError
    passes through: the run cannot write its own record, and stops.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, *exception: object) -> None:
        background = [t for t in self._trackers if isinstance(t, BackgroundTracker)]
        # The others last: they print what the background ones report.
        others = [tracker for tracker in self._trackers if tracker not in background]
        self._all(lambda tracker: tracker.finish(), background)
        self._all(lambda tracker: tracker.finish(), others)

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        self._all(lambda tracker: tracker.start(run, facts, step=step), self._trackers)

    def log(self, row: Row) -> None:
        self._all(lambda tracker: tracker.log({**row}), self._trackers)

    def print(self, text: str) -> None:
        self._all(lambda tracker: tracker.print(text), self._trackers)

    def _all(self, call: Callable[[Tracker], None], trackers: Sequence[Tracker]) -> None:
        news: list[str] = []
        for tracker in list(trackers):
            try:
                call(tracker)
            except RunError:
                raise
            except (Exception, SystemExit) as error:
                self._trackers.remove(tracker)
                news.append(
                    f"warning: {type(tracker).__name__} failed ({type(error).__name__}: {error}): "
                    "the run continues without it."
                )
            if isinstance(tracker, BackgroundTracker):
                news += tracker.news()
        for text in news:
            self.print(text)
            if not any(getattr(tracker, "on_terminal", False) for tracker in self._trackers):
                print_stderr(text)
