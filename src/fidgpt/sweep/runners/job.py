"""A point as work for a machine: a command line and a directory, all that any engine needs."""

import contextlib
import fcntl
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from fidgpt.sweep.point import Point
from fidgpt.train.tracking.trackers import Row, read_rows


@dataclass(frozen=True)
class Job:
    """One point that is to be trained.

    Attributes:
      point: which one.
      directory: its run directory, which the command makes.
      log: the file that takes what the command writes; locked while it runs.
      flags: what every command of the sweep is told.
    """

    point: Point
    directory: Path
    log: Path
    flags: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """What trains the point: from its first step, or on from where it was stopped."""
        command = [sys.executable, "-m", "fidgpt.cli.train", *self.flags]
        if (self.directory / "config.json").exists():
            return [*command, f"--resume={self.directory}"]
        directives = [f"--config={directive}" for directive in self.point.directives]
        # Of an axis's values, one may be what the base says already.
        return [*command, *directives, "--allow_noop", f"--run_dir={self.directory}"]

    @property
    def is_done(self) -> bool:
        """Whether it was trained to its end."""
        return (self.directory / "done.json").exists()

    def finish(self) -> Row:
        """Marks a run that has come to its end; returns the last row of its metrics."""
        path = self.directory / "metrics.jsonl"
        rows = read_rows(path) if path.exists() else []
        last = rows[-1] if rows else {}
        (self.directory / "done.json").write_text(json.dumps(last) + "\n", encoding="utf-8")
        return last

    def result(self) -> Row:
        """The last row of the metrics of a run that is done."""
        return json.loads((self.directory / "done.json").read_text(encoding="utf-8"))

    @contextlib.contextmanager
    def opened_log(self) -> Iterator[IO[bytes] | None]:
        """The log, locked for who gets it as its output; None where another process runs the job.

        The lock goes with the open file: it is held until the last process that has it ends,
        whatever becomes of the one that started it.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            except OSError:  # a file system that knows no locks keeps nobody out
                pass
            yield file


@dataclass(frozen=True)
class Ending:
    """How a process that trained a point ended.

    Attributes:
      status: finished, failed, diverged, stopped, or stopped early.
      last_words: what it said of it; "" where it came to its end.
    """

    status: str
    last_words: str = ""


class Events(Protocol):
    """Hears of a sweep as it happens."""

    def started(self, job: Job) -> None:
        """A process of the job was started."""
        ...

    def progressed(self, job: Job, row: Mapping[str, Any]) -> None:
        """A row of the job's metrics was read."""
        ...

    def ended(self, job: Job, ending: Ending, *, again: bool) -> None:
        """A process of the job ended; `again` where another one will be started."""
        ...

    def waits(self, job: Job) -> None:
        """The job is run by somebody else, whose end is waited for."""
        ...

    def stops(self) -> None:
        """A signal asks for the end: what runs saves where it is, and nothing more is started."""
        ...

    def tick(self) -> None:
        """Some time has passed."""
        ...


class Runner(Protocol):
    """Runs jobs, here or elsewhere: the seam for other engines."""

    def run(self, jobs: Sequence[Job], events: Events) -> bool:
        """Runs all of them; False where it was told to stop before they were done."""
        ...


def jobs_of(points: Sequence[Point], directory: Path, flags: Sequence[str] = ()) -> list[Job]:
    """The jobs of a sweep whose files lie in `directory`, in the order of its points."""
    return [
        Job(point, directory / point.short, directory / "logs" / f"{point.short}.log", tuple(flags))
        for point in points
    ]
