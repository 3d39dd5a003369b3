"""Between choices and jobs: each choice becomes work once, and what came of it is told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from fidgpt.graph import ConfigError
from fidgpt.model import StartError
from fidgpt.sweep.points.point import Point
from fidgpt.sweep.results.book import Book
from fidgpt.sweep.results.objective import Objective, refuse_unreported, reported_by
from fidgpt.sweep.runners.job import Job
from fidgpt.sweep.showing.screen import Screen

_WORTHLESS = ("stopped early", "diverged")


class Asked(Protocol):
    """One choice of a sampler: its number, and a value for each space by its name."""

    @property
    def number(self) -> int: ...

    @property
    def params(self) -> Mapping[str, Any]: ...


T_contra = TypeVar("T_contra", contravariant=True)


class Told(Protocol[T_contra]):
    """Hears what came of choices, so that the next ones are better."""

    def finished(self, trial: T_contra, value: float) -> None:
        """The point of a trial came to a value."""
        ...

    def pruned(self, trial: T_contra) -> None:
        """The point of a trial cannot be trained, or diverged, or was not worth going on with."""
        ...

    def failed(self, trial: T_contra) -> None:
        """Nobody knows what the point of a trial is worth."""
        ...


T = TypeVar("T", bound=Asked)


@dataclass
class Counts:
    """What became of trials that trained no point of their own.

    Attributes:
      refused: those that do not check.
      known: those whose point another trial had trained.
    """

    refused: int = 0
    known: int = 0


@dataclass
class Ledger(Generic[T]):
    """Knows which trials wait for which job.

    Attributes:
      told: hears what came of trials.
      book: the table of the points.
      screen: where to say what is not run.
      objective: what is to get small, or large.
      make: the point of some choices, by the names of the spaces.
      job_of: the work of a point.
    """

    told: Told[T]
    book: Book
    screen: Screen
    objective: Objective
    make: Callable[[Mapping[str, Any]], Point]
    job_of: Callable[[Point], Job]
    counts: Counts = field(default_factory=Counts)
    _open: dict[str, list[T]] = field(default_factory=dict)

    def checked(self, trial: T) -> Job | None:
        """The job of a trial; None where its point does not check, which is told."""
        try:
            return self.job_of(self.make(trial.params))
        except (ConfigError, StartError) as error:
            self.counts.refused += 1
            self.told.pruned(trial)
            self.screen.say(f"trial {trial.number + 1} is not run: {_line(error)}")
            return None

    def has(self, trial: T) -> bool:
        """Whether a trial waits for a job."""
        return any(trial.number == one.number for trials in self._open.values() for one in trials)

    def recall(self, trials: Sequence[Asked]) -> None:
        """Brings back rows that the table has lost, of points whose worth was told long ago."""
        for trial in trials:
            try:
                job = self.job_of(self.make(trial.params))
            except (ConfigError, StartError):  # it was refused then, too
                continue
            if job.point.fingerprint not in self.book.rows and job.directory.exists():
                self.book.add(job)

    def joined(self, trial: T, job: Job) -> bool:
        """Whether another trial waits for the same job, and this one with it from now on."""
        identity = job.point.fingerprint
        if identity not in self._open:
            return False
        self.counts.known += 1
        self._open[identity].append(trial)
        return True

    def opened(self, trial: T, job: Job, *, is_new: bool = True) -> bool:
        """Whether a job is to be run, for this trial; where its worth is known, that is told.

        Raises:
          ConfigError: it came to its end before, and has not reported the objective.
        """
        if job.point.fingerprint not in {one.point.fingerprint for one in self.book.jobs}:
            self.book.add(job)
        self._open[job.point.fingerprint] = [trial]
        status = self.book.row(job)["status"]
        if status != "finished" and status not in _WORTHLESS:
            return True
        self.counts.known += is_new
        self.close(job, status)
        return False

    def waiting(self, job: Job) -> list[T]:
        """The trials that wait for a job."""
        return self._open.get(job.point.fingerprint, [])

    def close(self, job: Job, status: str) -> None:
        """Tells what came of a job, for all trials that wait for it.

        Raises:
          ConfigError: the run came to its end, and has not reported the objective.
        """
        reported = reported_by(job.directory) if status == "finished" else {}
        for trial in self._open.pop(job.point.fingerprint, []):
            if status in _WORTHLESS:
                self.told.pruned(trial)
            elif self.objective.name in reported:
                self.told.finished(trial, reported[self.objective.name])
            else:
                self.told.failed(trial)
        if status == "finished":
            refuse_unreported(self.objective, reported)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
