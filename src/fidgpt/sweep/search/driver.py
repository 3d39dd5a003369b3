"""A search on one machine: the sampler is asked while there are places, and the runner is heard."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from optuna import Trial

from fidgpt.sweep.runners.job import Ending, Job
from fidgpt.sweep.search.ledger import Ledger
from fidgpt.sweep.search.study import Study
from fidgpt.sweep.showing.screen import Screen


@dataclass
class Driver:
    """Asks the study for points while there are places, and tells it what came of each.

    Attributes:
      study: what is asked and told.
      ledger: makes jobs of what it chooses.
      screen: hears all that happens.
      end_early: ends a job.
      is_alone: whether no other process asks the same study.
    """

    study: Study
    ledger: Ledger[Trial]
    screen: Screen
    end_early: Callable[[Job], None]
    is_alone: bool = True

    def jobs(self) -> Iterator[Job | None]:
        """What to train next, each asked for when there is a place; None while nothing may begin.

        First comes what was stopped. Where no other process asks, a point that goes on without who
        began it is waited for before anything is asked, so that no choice misses its value; the
        others are waited for in the end, so that none is lost if their process is.
        """
        if len(self.ledger.book.rows) < len(self.study.trials):
            self.ledger.recall(self.study.told())
        yield from self._left_over(wait=self.is_alone)
        while (trial := self.study.ask()) is not None:
            if (job := self._job(trial, is_new=True)) is not None:
                yield job
        yield from self._left_over(wait=True)

    def _left_over(self, *, wait: bool) -> Iterator[Job | None]:
        """What was begun before, or by others, and is run by nobody now."""
        while left := [one for one in self.study.running() if not self.ledger.has(one)]:
            for trial in left:
                if (job := self._job(trial, is_new=False)) is not None:
                    yield job
            if not wait:
                return
            yield None

    def _job(self, trial: Trial, *, is_new: bool) -> Job | None:
        """The job of a trial; None where its value is known, or it has none."""
        job = self.ledger.checked(trial)
        if job is None or self.ledger.joined(trial, job):
            return None
        if _is_run_elsewhere(job):
            if is_new:  # of a trial that is there already, its own process will tell
                self.study.failed(trial)
            return None
        return job if self.ledger.opened(trial, job, is_new=is_new) else None

    def started(self, job: Job) -> None:
        self.screen.started(job)

    def progressed(self, job: Job, row: Mapping[str, Any]) -> None:
        self.screen.progressed(job, row)
        name = self.ledger.objective.name
        if name not in row or row["step"] >= job.point.cost.num_steps:
            return
        judged = [
            self.study.hopeless(trial, row[name], row["step"]) for trial in self.ledger.waiting(job)
        ]
        if any(judged):
            self.end_early(job)

    def ended(self, job: Job, ending: Ending, *, again: bool) -> None:
        """Tells the study; of one that stopped or failed nothing, and the same command goes on."""
        self.screen.ended(job, ending, again=again)
        if not again and ending.status not in ("stopped", "failed"):
            self.ledger.close(job, ending.status)

    def waits(self, job: Job) -> None:
        self.screen.waits(job)

    def stops(self) -> None:
        self.screen.stops()

    def say(self, text: str) -> None:
        self.screen.say(text)

    def tick(self) -> None:
        self.screen.tick()


def _is_run_elsewhere(job: Job) -> bool:
    with job.opened_log() as log:
        return log is None
