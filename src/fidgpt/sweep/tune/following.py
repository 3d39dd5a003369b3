"""What Ray Tune says of a population, for a person, for the table of a sweep and its lineage."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fidgpt.graph import ConfigError
from fidgpt.sweep.points.point import Point
from fidgpt.sweep.points.trial import Cost
from fidgpt.sweep.results.book import Book
from fidgpt.sweep.results.objective import Objective, refuse_unreported
from fidgpt.sweep.runners.job import Ending, Job, jobs_of
from fidgpt.sweep.runners.tail import Tail
from fidgpt.sweep.runners.work import failure
from fidgpt.sweep.showing.screen import Screen
from fidgpt.sweep.tune.descent import Descent
from fidgpt.sweep.tune.lineage import Lineage
from fidgpt.sweep.tune.telling import broken


class Following:
    """Passes on what becomes of the runs of a population.

    Attributes:
      mistake: why going on makes no sense; None while it does.

    Args:
      book: the table of the runs.
      screen: hears of them.
      lineage: where each run is taken down.
      objective: what they are compared by.
      cost: of each of them.
      directory: of the sweep.
      flags: what every command is told.
    """

    def __init__(
        self,
        book: Book,
        screen: Screen,
        lineage: Lineage,
        *,
        objective: Objective,
        cost: Cost,
        directory: Path,
        flags: Sequence[str],
    ) -> None:
        self._book = book
        self._screen = screen
        self._lineage = lineage
        self.mistake: ConfigError | None = None
        self._objective = objective
        self._cost = cost
        self._directory = directory
        self._flags = tuple(flags)
        self._jobs: dict[str, Job] = {}  # by trial, the one that it trains now
        self._tails: dict[str, Tail] = {}  # of those that run

    def reported(self, trial: str, report: Mapping[str, Any]) -> None:
        descent = Descent.of_row(report["descent"])
        job = self._jobs.get(trial)
        if job is None or job.point.fingerprint != descent.fingerprint:
            if job is not None and self._book.row(job)["status"] != "stopped early":
                words = f"{descent.short} goes on in its place"
                self._ended(trial, Ending("stopped early", words))
            self._tails.pop(trial, None)
            self._begin(trial, descent)
        if trial not in self._tails and report["event"] == "runs":
            self._started(trial)
        if report["event"] == "again":
            self._ended(trial, failure(report["words"]), again=True)
        if report["event"] == "unmeasured":
            self._unmeasured(report["names"])

    def broke(self, trial: str, words: str) -> None:
        self.mistake = broken(words)

    def completed(self, trial: str, report: Mapping[str, Any]) -> None:
        ending = Ending("finished")
        if report.get("event") == "finished":
            self._jobs[trial].finish()
        else:
            ending = failure(report.get("words", ""))
        self._ended(trial, ending)

    def lost(self, trial: str, words: str, *, again: bool) -> None:
        if trial in self._tails or (trial in self._jobs and not again):
            self._ended(trial, Ending("failed", words), again=again)

    def tick(self) -> None:
        for trial in self._tails:
            self._follow(trial)
        self._screen.tick()

    def stopped(self) -> None:
        """No trial runs any more: those that had not come to their end were stopped."""
        for trial in list(self._tails):
            self._ended(trial, Ending("stopped"))

    def _unmeasured(self, names: Sequence[str]) -> None:
        try:
            refuse_unreported(self._objective, names)
        except ConfigError as error:
            self.mistake = error

    def _begin(self, trial: str, descent: Descent) -> None:
        job = jobs_of([self._point(descent)], self._directory, self._flags)[0]
        if self._lineage.add(descent) and descent.parent is not None:
            parent = self._name_of(descent.parent)
            self._screen.say(
                f"member {descent.member} goes on from {parent} after step "
                f"{descent.step:,}, with {_told(descent.values)}"
            )
        if descent.fingerprint not in {one.point.fingerprint for one in self._book.jobs}:
            self._book.add(job)
            if descent.parent is not None:
                self._screen.more()
        self._jobs[trial] = job

    def _name_of(self, fingerprint: str) -> str:
        return self._book.rows[fingerprint]["name"]

    def _started(self, trial: str) -> None:
        self._tails[trial] = Tail(self._jobs[trial].directory / "metrics.jsonl")
        self._screen.started(self._jobs[trial])

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

    def _ended(self, trial: str, ending: Ending, *, again: bool = False) -> None:
        self._follow(trial)
        self._tails.pop(trial, None)
        self._screen.ended(self._jobs[trial], ending, again=again)

    def _follow(self, trial: str) -> None:
        for row in self._tails[trial].rows() if trial in self._tails else ():
            self._screen.progressed(self._jobs[trial], row)


def _told(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
