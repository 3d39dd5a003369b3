"""What becomes of the jobs of a search by Ray Tune."""

from collections.abc import Mapping
from typing import Any

from fidgpt.sweep.runners.job import Ending, Job
from fidgpt.sweep.runners.work import failure
from fidgpt.sweep.showing.screen import Screen
from fidgpt.sweep.tune.callback import broken
from fidgpt.sweep.tune.choices import Choices
from fidgpt.sweep.tune.follower import Follower


class SearchFollower(Follower):
    """Passes on what becomes of the jobs of a search, to the choices too.

    Args:
      choices: which trial does which job.
      screen: hears of the jobs.
    """

    def __init__(self, choices: Choices, screen: Screen) -> None:
        super().__init__(screen)
        self._choices = choices
        self._waits: set[str] = set()

    def reported(self, trial: str, report: Mapping[str, Any]) -> None:
        job = self._choices.jobs[trial]
        if report["event"] == "waits":
            if trial not in self._waits:
                self._screen.waits(job)
            self._waits.add(trial)
            return
        if trial not in self._running:
            self._start(trial, job)
        self._choices.reported(job, report)
        if report["event"] == "again":
            self._end(trial, job, failure(report["words"]), again=True)

    def broke(self, trial: str, words: str) -> None:
        self._choices.mistake = broken(words)

    def completed(self, trial: str, report: Mapping[str, Any]) -> None:
        job = self._choices.jobs[trial]
        ending = Ending("stopped early")
        if report.get("event") == "finished":
            job.finish()
            ending = Ending("finished")
        elif report.get("event") == "failed":
            ending = failure(report["words"])
        self._close(trial, job, ending)

    def lost(self, trial: str, words: str, *, again: bool) -> None:
        job, ending = self._choices.jobs[trial], Ending("failed", words)
        if again:
            self._end(trial, job, ending, again=True)
        else:
            self._close(trial, job, ending)

    def _close(self, trial: str, job: Job, ending: Ending) -> None:
        self._end(trial, job, ending)
        self._choices.close(job, ending.status)
