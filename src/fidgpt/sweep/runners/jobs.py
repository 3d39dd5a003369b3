"""Jobs: points as commands and directories, and the interface between runners and sweeps."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from fidgpt.files import lock, write_whole
from fidgpt.sweep.objective import reported_by
from fidgpt.sweep.points import Point
from fidgpt.train.trackers.background import GROUP
from fidgpt.train.trackers.trackers import Row

_MARK = "done.json"


@dataclass(frozen=True)
class Job:
    """A point to train.

    Attributes:
      point: the point.
      directory: its run directory, which the command creates.
      log: the file for the command's output; locked while it runs.
      flags: of every command of the sweep.
    """

    point: Point
    directory: Path
    log: Path
    flags: tuple[str, ...] = ()

    @property
    def program(self) -> list[str]:
        """The command that trains, without a point."""
        return [sys.executable, "-m", "fidgpt.cli.train", *self.flags]

    @property
    def start_command(self) -> list[str]:
        """The command that trains the point from its first step."""
        directives = [f"--config={directive}" for directive in self.point.directives]
        # One value of an axis may be that of the base.
        return [*self.program, *directives, "--allow_noop", f"--run_dir={self.directory}"]

    @property
    def resume_command(self) -> list[str]:
        """The command that continues the point from its newest checkpoint."""
        return [*self.program, f"--resume={self.directory}"]

    @property
    def command(self) -> list[str]:
        """The command that starts the point, or resumes it."""
        return self.resume_command if self.is_begun else self.start_command

    @property
    def is_begun(self) -> bool:
        """Whether its directory holds a run."""
        return (self.directory / "config.json").exists()

    @property
    def is_done(self) -> bool:
        """Whether it has finished; a damaged mark counts as none."""
        return self._mark() is not None

    def result(self) -> Row:
        """Return the last value of each metric of a run that has finished."""
        return self._mark() or {}

    def finish(self) -> Row:
        """Mark the run as finished; returns the last value of each metric."""
        if (mark := self._mark()) is None:
            mark = reported_by(self.directory)
            write_whole(self.directory / _MARK, json.dumps(mark) + "\n")
        return mark

    def _mark(self) -> Row | None:
        try:
            mark = json.loads((self.directory / _MARK).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return mark if isinstance(mark, dict) else None

    def move_remains_aside(self) -> None:
        """Move away what a process wrote after its directory had been removed."""
        if self.directory.exists() and not self.is_begun:
            free = (self.directory.with_name(f"{self.directory.name}.lost-{i}") for i in count(1))
            self.directory.rename(next(path for path in free if not path.exists()))

    @contextlib.contextmanager
    def opened_log(self) -> Iterator[IO[bytes] | None]:
        """Open and lock the log for a process; None if another process runs the job.

        The lock belongs to the open file: it is held until the last process that has it exits.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as file:
            yield file if lock(file) else None

    def environment(self, assigned: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of its process: this one's, and its share of a machine."""
        return {GROUP: self.directory.resolve().parent.name, **os.environ, **assigned}


def jobs_of(points: Sequence[Point], directory: Path, flags: Sequence[str] = ()) -> list[Job]:
    """Return the jobs of a sweep in `directory`, in the order of its points."""
    return [
        Job(point, directory / point.short, directory / "logs" / f"{point.short}.log", tuple(flags))
        for point in points
    ]


@dataclass(frozen=True)
class Ending:
    """How a process that trained a point ended.

    Attributes:
      status: finished, failed, diverged, stopped, or stopped early.
      last_words: why; "" if it finished.
    """

    status: str
    last_words: str = ""


class Events(Protocol):
    """Receives the events of a sweep."""

    def started(self, job: Job) -> None:
        """Handle the start of a process of the job."""

    def progressed(self, job: Job, row: Mapping[str, Any]) -> None:
        """Handle a new row of the job's metrics."""

    def ended(self, job: Job, ending: Ending, *, again: bool) -> None:
        """Handle the end of a process of the job; `again` if another one will be started."""

    def waits(self, job: Job) -> None:
        """Handle that another process runs the job, which is waited for."""

    def stops(self) -> None:
        """Handle a signal to stop: running jobs save and exit, and no more are started."""

    def log(self, text: str) -> None:
        """Show a line to the user."""

    def tick(self) -> None:
        """Handle that some time has passed."""


@dataclass(frozen=True)
class Exit:
    """How the processes of an attempt ended.

    Attributes:
      status: 0 if the run finished; else an exit status, or the negative number of a signal.
      reason: why it ended; "" if it finished.
      is_lost: whether its machine was lost, which is not the job's fault.
      is_cancelled: whether someone other than the sweep cancelled it.
    """

    status: int
    reason: str = ""
    is_lost: bool = False
    is_cancelled: bool = False


# Waits for a machine; another process runs the job; its processes run; they ended.
State = Literal["pending", "refused", "running"] | Exit


class Attempt(Protocol):
    """One attempt at a job."""

    def poll(self) -> State:
        """Return its state; a refusal and an end are returned once."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its processes; an attempt that waits for a machine is withdrawn."""
