"""What becomes of the runs of a population, and of its lineage."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fidgpt.graph import ConfigError
from fidgpt.sweep.points.dry_runs import Cost
from fidgpt.sweep.points.point import Point
from fidgpt.sweep.results.objective import Objective, refuse_unreported
from fidgpt.sweep.runners.job import Ending, Job, jobs_of
from fidgpt.sweep.runners.work import failure
from fidgpt.sweep.showing.screen import Screen
from fidgpt.sweep.tune.callback import broken
from fidgpt.sweep.tune.descent import Descent
from fidgpt.sweep.tune.follower import Follower
from fidgpt.sweep.tune.lineage import Lineage


class PopulationFollower(Follower):
    """Passes on what becomes of the runs of a population.

    Attributes:
      mistake: why going on makes no sense; None while it does.

    Args:
      screen: hears of the runs, and has their book.
      lineage: where each run is taken down.
      objective: what they are compared by.
      cost: of each of them.
      directory: of the sweep.
      flags: what every command is told.
    """

    def __init__(
        self,
        screen: Screen,
        lineage: Lineage,
        *,
        objective: Objective,
        cost: Cost,
        directory: Path,
        flags: Sequence[str],
    ) -> None:
        super().__init__(screen)
        self.mistake: ConfigError | None = None
        self._lineage = lineage
        self._objective = objective
        self._cost = cost
        self._directory = directory
        self._flags = tuple(flags)
        self._jobs: dict[str, Job] = {}  # by trial, the one that it trains now, or trained last

    def reported(self, trial: str, report: Mapping[str, Any]) -> None:
        descent = Descent.of_row(report["descent"])
        job = self._jobs.get(trial)
        if job is None or job.point.fingerprint != descent.fingerprint:
            if job is not None:
                self._replace(trial, job, descent)
            job = self._begin(trial, descent)
        if trial not in self._running and report["event"] == "runs":
            self._start(trial, job)
        if report["event"] == "again":
            self._end(trial, job, failure(report["words"]), again=True)
        if report["event"] == "unmeasured":
            self._unmeasured(report["names"])

    def broke(self, trial: str, words: str) -> None:
        self.mistake = broken(words)

    def completed(self, trial: str, report: Mapping[str, Any]) -> None:
        job, ending = self._jobs[trial], Ending("finished")
        if report.get("event") == "finished":
            job.finish()
        else:
            ending = failure(report.get("words", ""))
        self._end(trial, job, ending)

    def lost(self, trial: str, words: str, *, again: bool) -> None:
        if trial in self._running or (trial in self._jobs and not again):
            self._end(trial, self._jobs[trial], Ending("failed", words), again=again)

    def _unmeasured(self, names: Sequence[str]) -> None:
        try:
            refuse_unreported(self._objective, names)
        except ConfigError as error:
            self.mistake = error

    def _replace(self, trial: str, job: Job, descent: Descent) -> None:
        """Ends a run in whose place its member goes on with a clone."""
        if self._screen.book.row(job)["status"] != "stopped early":
            words = f"{descent.short} goes on in its place"
            self._end(trial, job, Ending("stopped early", words))
        self._running.pop(trial, None)

    def _begin(self, trial: str, descent: Descent) -> Job:
        job = jobs_of([self._point(descent)], self._directory, self._flags)[0]
        book = self._screen.book
        if self._lineage.add(descent) and descent.parent is not None:
            parent = book.rows[descent.parent]["name"]
            self._screen.say(
                f"member {descent.member} goes on from {parent} after step "
                f"{descent.step:,}, with {_told(descent.values)}"
            )
        if descent.fingerprint not in {one.point.fingerprint for one in book.jobs}:
            book.add(job)
            if descent.parent is not None:
                self._screen.more()
        self._jobs[trial] = job
        return job

    def _point(self, descent: Descent) -> Point:
        name = f"member {descent.member}"
        if descent.parent is not None:
            name += f" from step {descent.step}"
        values = {key.rpartition(":")[2]: str(value) for key, value in descent.values.items()}
        varied = [one for one in descent.directives if one.partition("=")[0] in descent.values]
        return Point(
            tuple(descent.directives),
            tuple(varied),
            descent.fingerprint,
            f"{name}: {' '.join(f'{key}={value}' for key, value in values.items())}",
            self._cost,
            {"member": str(descent.member), **values},
        )


def _told(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
