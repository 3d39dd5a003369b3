"""Between the sampler and the runner: choices become jobs, and what came of jobs is told."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna import Trial

from fidgpt.graph import ConfigError
from fidgpt.model import StartError
from fidgpt.sweep.book import Book
from fidgpt.sweep.objective import refuse_unreported, reported_by
from fidgpt.sweep.point import Point
from fidgpt.sweep.runners.job import Ending, Job
from fidgpt.sweep.screen import Screen
from fidgpt.sweep.search.study import Study

_WORTHLESS = ("stopped early", "diverged")


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
class Driver:
    """Asks the study for points while there are places, and tells it what came of each.

    Attributes:
      study: what is asked and told.
      book: the table of the points.
      screen: hears all that happens.
      objective: the number that is minimised.
      make: the point of some choices, by the names of the spaces.
      job_of: the work of a point.
      end_early: ends a job.
    """

    study: Study
    book: Book
    screen: Screen
    objective: str
    make: Callable[[Mapping[str, Any]], Point]
    job_of: Callable[[Point], Job]
    end_early: Callable[[Job], None]
    counts: Counts = field(default_factory=Counts)
    _open: dict[str, list[Trial]] = field(default_factory=dict)

    def jobs(self) -> Iterator[Job]:
        """What to train next, each asked for when there is a place: first what was stopped."""
        for trial in self.study.running():
            if (job := self._job(trial, is_new=False)) is not None:
                yield job
        while (trial := self.study.ask()) is not None:
            if (job := self._job(trial, is_new=True)) is not None:
                yield job

    def _job(self, trial: Trial, *, is_new: bool) -> Job | None:
        """The job of a trial; None where its value is known, or it has none."""
        try:
            job = self.job_of(self.make(trial.params))
        except (ConfigError, StartError) as error:
            self.counts.refused += 1
            self.study.pruned(trial)
            self.screen.say(f"trial {trial.number + 1} is not run: {_line(error)}")
            return None
        identity = job.point.fingerprint
        if identity in self._open:
            self.counts.known += 1
            self._open[identity].append(trial)
            return None
        if _is_run_elsewhere(job):
            if is_new:  # of a trial that is there already, its own process will tell
                self.study.failed(trial)
            return None
        if identity not in {one.point.fingerprint for one in self.book.jobs}:
            self.book.add(job)
        self._open[identity] = [trial]
        status = self.book.row(job)["status"]
        if status == "finished" or status in _WORTHLESS:
            self.counts.known += is_new
            self._tell(job, status)
            return None
        return job

    def _tell(self, job: Job, status: str) -> None:
        """Tells the study what came of a job, for all trials that wait for it.

        Raises:
          ConfigError: the run came to its end, and has not reported the objective.
        """
        reported = reported_by(job.directory) if status == "finished" else {}
        for trial in self._open.pop(job.point.fingerprint, []):
            if status in _WORTHLESS:
                self.study.pruned(trial)
            elif self.objective in reported:
                self.study.finished(trial, reported[self.objective])
            else:
                self.study.failed(trial)
        if status == "finished":
            refuse_unreported(self.objective, reported)

    def started(self, job: Job) -> None:
        self.screen.started(job)

    def progressed(self, job: Job, row: Mapping[str, Any]) -> None:
        self.screen.progressed(job, row)
        if self.objective not in row or row["step"] >= job.point.cost.num_steps:
            return
        judged = [
            self.study.hopeless(trial, row[self.objective], row["step"])
            for trial in self._open.get(job.point.fingerprint, [])
        ]
        if any(judged):
            self.end_early(job)

    def ended(self, job: Job, ending: Ending, *, again: bool) -> None:
        self.screen.ended(job, ending, again=again)
        if not again and ending.status != "stopped":
            self._tell(job, ending.status)

    def waits(self, job: Job) -> None:
        self.screen.waits(job)

    def stops(self) -> None:
        self.screen.stops()

    def tick(self) -> None:
        self.screen.tick()


def _is_run_elsewhere(job: Job) -> bool:
    with job.opened_log() as log:
        return log is None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
