"""Where the numbers of a run go: a protocol, and a file with one JSON object a step."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from fidgpt.train.facts import Facts
from fidgpt.train.run import RunDirectory, RunError, resume_flag

Row = dict[str, Any]


@runtime_checkable
class Tracker(Protocol):
    """Hears of a run as it happens, on its main process alone."""

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        """The run begins, or goes on after `step` steps."""
        ...

    def log(self, row: Row) -> None:
        """One step is done: `step`, `loss` and whatever else was measured."""
        ...

    def say(self, text: str) -> None:
        """Something for a person to read."""
        ...

    def finish(self) -> None:
        """The run is over, whether it got to its end or not."""
        ...


class Trackers:
    """Several trackers as one, finished in any case."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for tracker in self._trackers:
            tracker.finish()

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        for tracker in self._trackers:
            tracker.start(run, facts, step=step)

    def log(self, row: Row) -> None:
        for tracker in self._trackers:
            tracker.log(row)

    def say(self, text: str) -> None:
        for tracker in self._trackers:
            tracker.say(text)


class JSONLines:
    """Appends one row a step to `metrics.jsonl` in the run directory, floats at full precision.

    A run that goes on after a kill drops the rows of steps that its checkpoint does not know, so
    the file reads as if nothing had happened.
    """

    def __init__(self) -> None:
        self._file: Any = None

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        path = run.path / "metrics.jsonl"
        with _explained(path):
            if path.exists():
                _keep_until(path, step)
            # Unbuffered: what could not be written is not tried again as the file is closed.
            self._file = path.open("ab", buffering=0)

    def log(self, row: Row) -> None:
        line = (json.dumps(row) + "\n").encode()
        with _explained(Path(self._file.name)):
            while line:
                line = line[self._file.write(line) :]

    def say(self, text: str) -> None:
        """Text is no metric."""

    def finish(self) -> None:
        if self._file is not None:
            self._file.close()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be written ({error.strerror}): make room, then go on with "
            f"{resume_flag(path.parent)}."
        ) from error


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics file up to the first that is none, as where a kill cut it short."""
    rows: list[Row] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row: Any = json.loads(line)
        except json.JSONDecodeError:
            break
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            break
        rows.append(row)
    return rows


def _keep_until(path: Path, step: int) -> None:
    kept = [row for row in read_rows(path) if row["step"] <= step]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    os.replace(temporary, path)
