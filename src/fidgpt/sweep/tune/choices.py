"""What a search under Ray Tune trains next: Tune's own searcher is asked, each point comes once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from fidgpt.graph import ConfigError
from fidgpt.sweep.results.objective import Objective
from fidgpt.sweep.runners.job import Job
from fidgpt.sweep.search.search import LedgerOf
from fidgpt.sweep.search.study import NAME, Study
from fidgpt.sweep.tune.trial import Task


@dataclass(frozen=True)
class Chosen:
    """A choice of the searcher.

    Attributes:
      id: what the searcher knows it by.
      number: in the study.
      params: a value for each space, by its name.
    """

    id: str
    number: int
    params: Mapping[str, Any]


class Choices:
    """Makes jobs of what Tune's searcher suggests, and tells it what came of them.

    The searcher works on the study of the directory, so a search may go on by another engine.
    What nobody has told the end of is suggested once more, before anything new.

    Args:
      study: of the search.
      objective: what is to get small, or large.
      ledger_of: makes the ledger.
    """

    def __init__(self, study: Study, objective: Objective, ledger_of: LedgerOf) -> None:
        from ray.tune.search.optuna import OptunaSearch

        study.put_back()
        self.ledger = ledger_of(self)
        self.ledger.recall(study.told())
        self.jobs: dict[str, Job] = {}  # by the identity of the trial
        self.mistake: ConfigError | None = None
        self._study = study
        self._objective = objective
        self._numbers: set[int] = set()
        self._searcher = OptunaSearch(
            study.distributions,
            metric=objective.name,
            mode=objective.way,
            sampler=study.sampler,
            study_name=NAME,
            storage=study.storage,
        )

    def next(self, identity: str) -> Job | None:
        """What a new trial is to train; None where there is nothing more to do."""
        while self.mistake is None and not self._study.is_full:
            chosen = self._chosen(f"{identity}-{len(self._numbers)}")
            job = self.ledger.checked(chosen)
            if job is None or self.ledger.joined(chosen, job):
                continue
            if self._opened(chosen, job):
                self.jobs[identity] = job
                return job
        return None

    def _opened(self, chosen: Chosen, job: Job) -> bool:
        try:
            return self.ledger.opened(chosen, job)
        except ConfigError as error:
            self.mistake = error
            return False

    def _chosen(self, identity: str) -> Chosen:
        params = self._searcher.suggest(identity)
        assert params is not None  # it has no end of its own
        running = {one.number for one in self._study.trials if one.state == TrialState.RUNNING}
        (number,) = running - self._numbers
        self._numbers.add(number)
        return Chosen(identity, number, self._study.trials[number].params)

    def close(self, job: Job, status: str) -> None:
        """A job came to an end; what that means for those who wait for it is told."""
        try:
            self.ledger.close(job, status)
        except ConfigError as error:
            self.mistake = error

    def reported(self, job: Job, report: Mapping[str, Any]) -> None:
        """Takes down what a job has come to on the way."""
        name = self._objective.name
        if name not in report or report.get("done"):
            return
        for chosen in self.ledger.waiting(job):
            if report["step"] not in self._study.trials[chosen.number].intermediate_values:
                value = {name: report[name], "training_iteration": report["step"]}
                self._searcher.on_trial_result(chosen.id, value)

    def finished(self, trial: Chosen, value: float) -> None:
        told = {self._objective.name: value} if math.isfinite(value) else None
        self._searcher.on_trial_complete(trial.id, told)

    def pruned(self, trial: Chosen) -> None:
        self._searcher.on_trial_complete(trial.id, None)

    def failed(self, trial: Chosen) -> None:
        self._searcher.on_trial_complete(trial.id, None, error=True)


def searcher_of(choices: Choices, objective: Objective) -> Any:
    """The searcher that Ray Tune asks: each suggestion is a job, in plain values."""
    from ray.tune.search import Searcher

    class Suggesting(Searcher):
        def __init__(self, choices: Choices, *, metric: str, mode: str) -> None:
            super().__init__(metric=metric, mode=mode)
            self._choices = choices

        def suggest(self, trial_id: str) -> Any:
            job = self._choices.next(trial_id)
            return self.FINISHED if job is None else {"task": _task_of(job)}

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            """What came of it, the choices hear from elsewhere, with what the trial reported."""

        def save(self, checkpoint_path: str) -> None:
            """The study is what is kept, and not what Tune would."""
            Path(checkpoint_path).touch()

        def __getstate__(self) -> dict[str, Any]:
            return {}

    return Suggesting(choices, metric=objective.name, mode=objective.way)


def _task_of(job: Job) -> Task:
    """A job in plain values."""
    return {
        "run": str(job.directory.resolve()),
        "log": str(job.log.resolve()),
        "begin": job.beginning,
        "go_on": job.going_on,
        "num_steps": job.point.cost.num_steps,
    }
