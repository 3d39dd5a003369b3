"""What Ray Tune says of its trials, for a person and for the table of a sweep."""

from collections.abc import Mapping
from typing import Any, Protocol

from fidgpt.graph import ConfigError
from fidgpt.sweep.runners.job import Ending, Job
from fidgpt.sweep.runners.tail import Tail
from fidgpt.sweep.runners.work import failure
from fidgpt.sweep.showing.screen import Screen
from fidgpt.sweep.tune.choices import Choices
from fidgpt.sweep.tune.trainable import BROKEN


class Heard(Protocol):
    """Hears of trials, by their identity."""

    def reported(self, trial: str, report: Mapping[str, Any]) -> None:
        """A trial has reported."""
        ...

    def broke(self, trial: str, words: str) -> None:
        """The code of a trial raised something, so that going on makes no sense."""
        ...

    def completed(self, trial: str, report: Mapping[str, Any]) -> None:
        """A trial came to its end, or is ended; with its last report."""
        ...

    def lost(self, trial: str, words: str, *, again: bool) -> None:
        """The node of a trial is gone; `again` where it is moved to another one."""
        ...

    def tick(self) -> None:
        """Some time has passed."""
        ...


class Telling:
    """Passes on what becomes of the jobs of a search.

    Args:
      choices: which trial does which job.
      screen: hears of the jobs.
    """

    def __init__(self, choices: Choices, screen: Screen) -> None:
        self._choices = choices
        self._screen = screen
        self._running: dict[str, Tail] = {}  # by trial
        self._waits: set[str] = set()

    def reported(self, trial: str, report: Mapping[str, Any]) -> None:
        job = self._choices.jobs[trial]
        if report["event"] == "waits":
            if trial not in self._waits:
                self._screen.waits(job)
            self._waits.add(trial)
            return
        if trial not in self._running:
            self._running[trial] = Tail(job.directory / "metrics.jsonl")
            self._screen.started(job)
        self._choices.reported(job, report)
        if report["event"] == "again":
            self._ended(trial, failure(report["words"]), again=True)

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
        self._ended(trial, ending)

    def lost(self, trial: str, words: str, *, again: bool) -> None:
        self._ended(trial, Ending("failed", words), again=again)

    def tick(self) -> None:
        for trial in self._running:
            self._follow(trial)
        self._screen.tick()

    def stopped(self) -> None:
        """No trial runs any more: those that had not come to their end were stopped."""
        for trial in list(self._running):
            job = self._choices.jobs[trial]
            self._follow(trial)
            self._screen.ended(job, Ending("stopped"), again=False)

    def _ended(self, trial: str, ending: Ending, *, again: bool = False) -> None:
        job: Job = self._choices.jobs[trial]
        self._follow(trial)
        self._running.pop(trial, None)
        self._screen.ended(job, ending, again=again)
        if not again:
            self._choices.close(job, ending.status)

    def _follow(self, trial: str) -> None:
        for row in self._running[trial].rows() if trial in self._running else ():
            self._screen.progressed(self._choices.jobs[trial], row)


def callback(heard: Heard) -> Any:
    """The callback by which Ray Tune tells of its trials."""
    from ray import tune

    class Calling(tune.Callback):
        def __init__(self, heard: Heard) -> None:
            self._heard = heard

        def __getstate__(self) -> dict[str, Any]:
            return {}  # Tune keeps a copy, for what we do otherwise

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            if result.get("event") == BROKEN:
                self._heard.broke(trial.trial_id, result["words"])
            else:
                self._heard.reported(trial.trial_id, result)

        def on_trial_complete(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            self._heard.completed(trial.trial_id, trial.last_result or {})

        def on_trial_error(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            self._heard.lost(trial.trial_id, _reason(trial), again=False)

        def on_trial_recover(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            self._heard.lost(trial.trial_id, _reason(trial), again=True)

        def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
            self._heard.tick()

    return Calling(heard)


def _reason(trial: Any) -> str:
    """Why Ray took a trial for lost, in a line."""
    lines = [line.strip() for line in str(trial.get_error() or "").splitlines() if line.strip()]
    return f"its process on the node is gone: {lines[-1]}" if lines else "its node is gone."


def broken(words: str) -> ConfigError:
    """What ends a search in which a trial's own code fails, as it would on any node."""
    return ConfigError(f"the search cannot go on: {words}\nThe same command tries it again.")
