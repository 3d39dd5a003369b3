"""Jobs and attempts."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        return self.going_on if self.is_begun else self.beginning

    @property
    def beginning(self) -> list[str]:
        """What trains the point from its first step."""
        directives = [f"--config={directive}" for directive in self.point.directives]
        # Of an axis's values, one may be what the base says already.
        return [*self.program, *directives, "--allow_noop", f"--run_dir={self.directory}"]

    @property
    def going_on(self) -> list[str]:
        """What trains the point on from where it was stopped."""
        return [*self.program, f"--resume={self.directory}"]

    @property
    def program(self) -> list[str]:
        """What trains, before it is told which point."""
        return [sys.executable, "-m", "fidgpt.cli.train", *self.flags]

    @property
    def is_begun(self) -> bool:
        """Whether there is a run in its directory, which is made with its config in it."""
        return (self.directory / "config.json").exists()

    def make_way(self) -> None:
        """Moves aside what a process left that went on while somebody removed its directory."""
        if self.directory.exists() and not self.is_begun:
            free = (self.directory.with_name(f"{self.directory.name}.lost-{i}") for i in count(1))
            self.directory.rename(next(path for path in free if not path.exists()))

    @property
    def is_done(self) -> bool:
        """Whether it was trained to its end; a mark that cannot be read is none."""
        return self._mark() is not None

    def finish(self) -> Row:
        """Marks a run that has come to its end; returns the last of each number of its metrics."""
        if (mark := self._mark()) is not None:
            return mark
        last = reported_by(self.directory)
        write_whole(self.directory / _MARK, json.dumps(last) + "\n")
        return last

    def result(self) -> Row:
        """The last of each number of the metrics of a run that is done."""
        return self._mark() or {}

    def _mark(self) -> Row | None:
        try:
            mark = json.loads((self.directory / _MARK).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return mark if isinstance(mark, dict) else None

    @contextlib.contextmanager
    def opened_log(self) -> Iterator[IO[bytes] | None]:
        """The log, locked for who gets it as its output; None where another process runs the job.

        The lock goes with the open file: it is held until the last process that has it ends,
        whatever becomes of the one that started it.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as file:
            yield file if lock(file) else None


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

    def say(self, text: str) -> None:
        """Something for a person to read."""
        ...

    def tick(self) -> None:
        """Some time has passed."""
        ...


class Runner(Protocol):
    """Runs jobs, here or elsewhere: the seam for other engines."""

    def run(self, jobs: Iterable[Job | None], events: Events) -> bool:
        """Runs all of them; False where it was told to stop before they were done.

        Each is asked for when there is a place for it; a None is asked again after a pause.
        """
        ...

    def end_early(self, job: Job) -> None:
        """Ends a job that is not worth going on with; it saves where it is."""
        ...


def jobs_of(points: Sequence[Point], directory: Path, flags: Sequence[str] = ()) -> list[Job]:
    """The jobs of a sweep whose files lie in `directory`, in the order of its points."""
    return [
        Job(point, directory / point.short, directory / "logs" / f"{point.short}.log", tuple(flags))
        for point in points
    ]


@dataclass(frozen=True)
class Exit:
    """How the processes of an attempt ended.

    Attributes:
      status: 0 at the end of the run; else an exit status, or minus the signal that killed it.
      words: why it ended; "" where it came to its end.
      is_lost: whether the machine went away under it, which is no fault of the job's.
      is_told: whether somebody told it to end, who is not the sweep.
    """

    status: int
    words: str = ""
    is_lost: bool = False
    is_told: bool = False


# It waits for a machine; somebody else runs the job; its processes run; they ended.
State = Literal["placing", "refused", "running"] | Exit


class Attempt(Protocol):
    """One try at a job."""

    def look(self) -> State:
        """How it stands; a refusal and an end are told once."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to its processes; what still waits for a machine is given up."""
        ...


# Begins an attempt: with the log, locked until this returns, and the number of its place.
Launch = Callable[[Job, IO[bytes], int], Attempt]

# Finds the attempt at a job that an earlier sweep left behind, if it is still under way.
Adopt = Callable[[Job], Attempt | None]


def environment_of(job: Job, dealt: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job's process: this one's, and what it was dealt of a machine."""
    return {GROUP: job.directory.resolve().parent.name, **os.environ, **dealt}
