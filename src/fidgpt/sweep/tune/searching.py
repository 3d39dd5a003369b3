"""Searches on Ray Tune."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from optuna.trial import TrialState
from rich.console import Console

from fidgpt.graph import ConfigError
from fidgpt.sweep.objective import Objective
from fidgpt.sweep.progress import Screen
from fidgpt.sweep.runners.attempt import Ending, Job
from fidgpt.sweep.runners.ray_cluster import RayRunner
from fidgpt.sweep.runners.work import failure
from fidgpt.sweep.search.sampling import HALVING, RUNGS
from fidgpt.sweep.search.search import Found, LedgerOf, Search
from fidgpt.sweep.search.study import NAME, Study
from fidgpt.sweep.tune.fitting import (
    Follower,
    Stop,
    broken,
    callback,
    driven_alone,
    fit,
    surroundings_of,
)
from fidgpt.sweep.tune.trial import Task, trial_of


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


def search_with_tune(search: Search, runner: RayRunner, *, console: Console | None = None) -> Found:
    """Trains the points of a search on a Ray cluster, or on from where it was stopped.

    The study lies in the directory of the search as that of any other engine, so the same command
    goes on with it, and Optuna alone could, too. No point is trained twice.

    Args:
      search: what is chosen, how, and what ends early.
      runner: the cluster, what a trial needs of it, how many run at a time, and how often one that
        failed is tried again.
      console: where to tell of it; standard output unless said.

    Raises:
      ConfigError: none of the points could be run, or Ray cannot run them, or another process runs
        this search.
    """

    def drive(study: Study, screen: Screen, ledger_of: LedgerOf) -> bool:
        return _drive(search, runner, study, screen, ledger_of)

    return search.driven_by(drive, side_by_side=runner.jobs > 1, console=console)


def _drive(
    search: Search, runner: RayRunner, study: Study, screen: Screen, ledger_of: LedgerOf
) -> bool:
    surroundings = surroundings_of(runner, search.directory)
    with driven_alone(search.directory), runner.connected(screen.say):
        choices = Choices(study, search.objective, ledger_of)
        follower = SearchFollower(choices, screen)
        stop = Stop(screen.stops, lambda: choices.mistake is not None)
        fit(
            partial(
                trial_of,
                objective=search.objective.name,
                worst=search.objective.worst,
                retries=runner.retries,
                surroundings=surroundings,
            ),
            runner,
            search.directory,
            objective=search.objective,
            searcher=searcher_of(choices, search.objective),
            scheduler=_scheduler(search),
            callback=callback(follower),
            stop=stop,
            max_concurrent=runner.jobs,
        )
        follower.stopped()
    if choices.mistake is not None:
        raise choices.mistake
    return not stop.is_asked


def _scheduler(search: Search) -> Any:
    """Tune's rule of that name, as Optuna's on one machine."""
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule

    num_steps = search.points.num_steps() or 1
    if search.stop == "asha":
        return ASHAScheduler(
            time_attr="step",
            max_t=num_steps,
            grace_period=max(1, num_steps // HALVING**RUNGS),
            reduction_factor=HALVING,
            stop_last_trials=False,
        )
    if search.stop == "median":
        # To hand the place of one that runs to one that waits would cost a process each time.
        return MedianStoppingRule(
            time_attr="step", grace_period=num_steps // 10, min_time_slice=cast("int", math.inf)
        )
    return FIFOScheduler()
