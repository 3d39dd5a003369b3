"""Searches: points that Optuna chooses by the results of earlier ones, on any runner.

Search("config:base", space("tag:LearningRate=log(1e-5,1e-1)"), sampler="tpe:50",
       objective="validation/loss", stop="asha").run(jobs=2)
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import TrialState
from rich.console import Console, Group, RenderableType
from rich.text import Text

from fidgpt.compose import runs
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.files import lock, wait_for_lock
from fidgpt.graph import ConfigError
from fidgpt.model import InitError
from fidgpt.sweep import spaces
from fidgpt.sweep.objective import (
    Objective,
    objective_of,
    refuse_unreportable,
    refuse_unreported,
    reported_by,
)
from fidgpt.sweep.points import Point
from fidgpt.sweep.progress import Screen, opened
from fidgpt.sweep.results import Result, Results, results_table
from fidgpt.sweep.runners.jobs import Ending, Job, Runner, jobs_of
from fidgpt.sweep.runners.local import LocalRunner
from fidgpt.sweep.spaces import Points, Space, space

__all__ = ["FILE", "Found", "Search", "Space", "Study", "space"]

FILE = "study.journal"
_LOCK, _PRESENCE = ".journal", ".search.lock"
_USELESS = ("stopped early", "diverged")  # statuses of points that end without a value


def _open_journal(directory: Path) -> JournalStorage:
    """Open the storage of a search, removing a last line that was cut short."""
    path, lock_obj = directory / FILE, JournalFileOpenLock(str(directory / _LOCK))
    lock_obj.acquire()
    text = path.read_bytes() if path.exists() else b""
    if not text.endswith(b"\n") and text:
        os.truncate(path, text.rfind(b"\n") + 1)
    lock_obj.release()
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock_obj))


class Study:
    """An Optuna study in the directory of a search, which several processes may share.

    Args:
      directory: where its journal lies.
      content: what the study is about; a directory holds one search only.
      distributions: what is chosen, by name.
      num_trials: the trials of all processes together.
      settings: the sampler, pruner and direction.

    Raises:
      ConfigError: the directory holds a different search.
    """

    def __init__(
        self,
        directory: Path,
        *,
        content: Mapping[str, Any],
        distributions: dict[str, Any],
        num_trials: int,
        **settings: Any,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        directory.mkdir(parents=True, exist_ok=True)
        self._distributions = distributions
        self._num_trials = num_trials
        self.optuna = optuna.create_study(
            storage=_open_journal(directory), study_name="search", load_if_exists=True, **settings
        )
        for name, value in content.items():
            known = self.optuna.user_attrs.get(name)
            if known is None:
                self.optuna.set_user_attr(name, value)
            elif known != value:
                raise ConfigError(
                    f"{directory} holds a search with {name} {json.dumps(known)}, and this one has "
                    f"{json.dumps(value)}: name another --run_dir."
                )

    @property
    def trials(self) -> list[optuna.trial.FrozenTrial]:
        """All trials so far."""
        return self.optuna.get_trials(deepcopy=False)

    def running(self) -> list[optuna.Trial]:
        """Return the trials without a result."""
        left = [one for one in self.trials if one.state == TrialState.RUNNING]
        trials = [optuna.Trial(self.optuna, one._trial_id) for one in left]
        for trial in trials:
            for name, distribution in self._distributions.items():
                if name not in trial.params:  # the process that asked was killed before it chose
                    trial._suggest(name, distribution)
        return trials

    def ask(self) -> optuna.Trial | None:
        """Return the next trial, or None when there are enough."""
        if len(self.trials) >= self._num_trials:
            return None
        trial = self.optuna.ask(self._distributions)
        if trial.number < self._num_trials:
            return trial
        self.close(trial, TrialState.FAIL)  # another process asked at the same moment
        return None

    def close(self, trial: optuna.Trial, state: TrialState, value: float | None = None) -> None:
        """Report the result of a trial, unless another process has."""
        # Optuna checks before it writes: another process may write in between.
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            self.optuna.tell(trial, value, state=state, skip_if_finished=True)

    def should_stop(self, trial: optuna.Trial, value: float, step: int) -> bool:
        """Report an intermediate value; returns whether to stop the trial early."""
        known: dict[int, Any] = self.trials[trial.number].intermediate_values
        if step in known:
            return False
        trial.report(value, step)
        return trial.should_prune()


class Driver:
    """Turns trials into jobs as slots free up, and reports their results to the study.

    Args:
      search: the search.
      study: its study.
      screen: shows all events, and keeps the table.
      runner: runs the jobs.
      is_alone: whether no other process drives the search.
    """

    def __init__(
        self, search: "Search", study: Study, screen: Screen, runner: Runner, *, is_alone: bool
    ) -> None:
        self.num_refused = 0  # trials that failed their checks
        self.num_known = 0  # trials whose point another trial had trained
        self._search = search
        self._study = study
        self._screen = screen
        self._runner = runner
        self._is_alone = is_alone
        self._open: dict[str, list[optuna.Trial]] = {}  # by the fingerprint of their job
        self.stops, self.log = screen.stops, screen.log
        self.started, self.waits, self.tick = screen.started, screen.waits, screen.tick

    def jobs(self) -> Iterator[Job | None]:
        """Yield what to train next as slots free up; None while nothing may begin.

        Stopped points come first. If no other process drives the search, a point that still runs
        without its driver is waited for before anything is chosen, so that its value counts;
        points of other drivers are waited for in the end, in case their process dies.
        """
        if len(self._screen.book.rows) < len(self._study.trials):
            self._recover_rows()
        yield from self._unfinished(wait=self._is_alone)
        while (trial := self._study.ask()) is not None:
            if (job := self._job(trial, is_new=True)) is not None:
                yield job
        yield from self._unfinished(wait=True)

    def _recover_rows(self) -> None:
        """Restore rows that the table has lost, of trials that are finished."""
        for trial in (one for one in self._study.trials if one.state.is_finished()):
            with contextlib.suppress(ConfigError, InitError):  # it was refused then, too
                job = self._search.job(trial.params)
                known = job.point.fingerprint in self._screen.book.rows
                if not known and job.directory.exists():
                    self._screen.book.add(job)

    def _unfinished(self, *, wait: bool) -> Iterator[Job | None]:
        """Yield what was begun before, or by other processes, and is not running now."""
        while True:
            mine = {one.number for trials in self._open.values() for one in trials}
            left = [one for one in self._study.running() if one.number not in mine]
            for trial in left:
                if (job := self._job(trial, is_new=False)) is not None:
                    yield job
            if not (left and wait):
                return
            yield None

    def _job(self, trial: optuna.Trial, *, is_new: bool) -> Job | None:
        """Return the job of a trial; None if it fails its checks, is known or runs elsewhere."""
        try:
            job = self._search.job(trial.params)
        except (ConfigError, InitError) as error:
            self.num_refused += 1
            self._study.close(trial, TrialState.PRUNED)
            line = " ".join(str(error).split())[:300]
            self._screen.log(f"trial {trial.number + 1} is not run: {line}")
            return None
        if (open_trials := self._open.get(job.point.fingerprint)) is not None:
            self.num_known += 1
            open_trials.append(trial)
            return None
        with job.opened_log() as log:
            if log is None:
                if is_new:  # otherwise the other process will report it
                    self._study.close(trial, TrialState.FAIL)
                return None
        if job not in self._screen.book.jobs:
            self._screen.book.add(job)
        self._open[job.point.fingerprint] = [trial]
        status = self._screen.book.row(job)["status"]
        if status != "finished" and status not in _USELESS:
            return job
        self.num_known += is_new
        self._close(job, status)
        return None

    def progressed(self, job: Job, row: Mapping[str, Any]) -> None:
        """Show a row of metrics; end a job early if none of its trials is promising."""
        self._screen.progressed(job, row)
        name = self._search.objective.name
        if name in row and row["step"] < job.point.cost.num_steps:
            trials = self._open.get(job.point.fingerprint, [])
            if any([self._study.should_stop(one, row[name], row["step"]) for one in trials]):
                self._runner.end_early(job)

    def ended(self, job: Job, ending: Ending, *, again: bool) -> None:
        """Report a result; the same command continues a point that was stopped or failed."""
        self._screen.ended(job, ending, again=again)
        if not again and ending.status not in ("stopped", "failed"):
            self._close(job, ending.status)

    def _close(self, job: Job, status: str) -> None:
        """Report the result of a job to its trials.

        Raises:
          ConfigError: the run finished without reporting the objective.
        """
        objective = self._search.objective
        reported = reported_by(job.directory) if status == "finished" else {}
        value = reported.get(objective.name)
        for trial in self._open.pop(job.point.fingerprint, []):
            if status == "finished" and value is None:
                self._study.close(trial, TrialState.FAIL)
            elif value is not None and math.isfinite(value):
                self._study.close(trial, TrialState.COMPLETE, value)
            else:
                self._study.close(trial, TrialState.PRUNED)
        if status == "finished":
            refuse_unreported(objective, reported)


@dataclass(frozen=True)
class Found:
    """The result of a search or a population.

    Attributes:
      results: the rows of all points in its table.
      objective: what was compared.
      is_whole: whether it finished, rather than being stopped by a signal.
      summary: how many points there were.
      commands: returns the commands that repeat the point of a row.
    """

    results: Results
    objective: Objective
    is_whole: bool
    summary: str
    commands: Callable[[Result], list[str]]

    @property
    def best(self) -> Result | None:
        """The best finished row; None without any."""
        row = self.results.best()
        return row if row is not None and row["status"] == "finished" else None

    def __rich__(self) -> RenderableType:
        lines = [self.summary]
        if (row := self.best) is not None:
            value = row["metrics"][self.objective.name]
            lines.append(f"best: {row['name']}, {self.objective.name} {value:.4f}")
            lines += [f"  {command}" for command in self.commands(row)]
        return Group(results_table(self.results, self.objective), *map(Text, lines))


class Searched:
    """What searches and populations share: directives with spaces, and an objective.

    Args:
      items: directives such as `config:base`, and spaces at their positions among them.
      kind: of the search, which names its default directory.
      objective: what to minimize, such as `validation/loss`; `max:NAME` maximizes.
      seed: of all random choices.
      directory: of the search; defaults to one of `runs` that `content` names.
      allowed: the user's own packages whose callables a config may name.
      content: what else the default directory depends on.

    Raises:
      ConfigError: there is no space.
    """

    def __init__(
        self,
        items: Sequence[str | Space],
        kind: str,
        *,
        objective: str,
        seed: int,
        directory: str | Path | None,
        allowed: Sequence[str],
        content: Sequence[Any] = (),
    ) -> None:
        self.items = list(items)
        self.spaces = [item for item in items if isinstance(item, Space)]
        self.objective = objective_of(objective)
        self.seed = seed
        self.allowed = tuple(allowed)
        if not self.spaces:
            raise ConfigError(
                f"a {kind} needs a space: --space='tag:LearningRate=log(1e-4,1e-2)', in quotes."
            )
        texts = [item if isinstance(item, str) else item.text for item in items]
        identity = repr([texts, self.objective.text, *content])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
        base = runs.name_of_base([item for item in items if isinstance(item, str)])
        self.directory = Path(directory or Path("runs") / f"{kind}-{base}-{digest}")

    @cached_property
    def points(self) -> Points:
        """The points, after checking for errors that all of them share.

        Raises:
          ConfigError: there is such an error, or no run reports the objective.
        """
        made = Points(self.items, own_catalogue(self.allowed))
        refuse_unreportable(self.objective, made.check())
        self.check(made)
        return made

    @contextlib.contextmanager
    def opened(self, console: Console | None, *, num_jobs: int) -> Iterator[tuple[Screen, bool]]:
        """Open the screen; yields also whether no other process drives the search."""
        directory, items, objective = self.directory, self.points.items, self.objective
        settings = {"items": items, "objective": objective, "num_jobs": num_jobs}
        with (
            opened(directory, [], console=console, **settings) as screen,
            (directory / _PRESENCE).open("ab") as file,
        ):
            is_alone = lock(file)
            wait_for_lock(file, fcntl.LOCK_SH)
            yield screen, is_alone

    def check(self, points: Points) -> None:
        """Refuse points that this kind of search cannot train."""

    def __rich__(self) -> RenderableType:
        lines = (
            f"{self.summary}, so that {self.objective.aim}, in {self.directory}",
            *self.points.moves(),
        )
        return Group(*map(Text, lines))

    @property
    def summary(self) -> str:
        """What is tried, in a few words."""
        raise NotImplementedError


class Search(Searched):
    """Points that a sampler chooses to minimize or maximize an objective.

    Args:
      items: directives such as `config:base`, and spaces at their positions among them.
      sampler: tpe, random, grid or cmaes, with the number of trials: `tpe:50`; a grid defaults to
        all of its points.
      objective: what to minimize, such as `validation/loss`; `max:tasks/arc_easy/acc` maximizes.
      stop: asha or median, which end unpromising points early; None for neither.
      seed: of the sampler: a search with one job at a time is reproducible.
      directory: of the search; defaults to `runs/search-...` of these spaces.
      allowed: the user's own packages whose callables a config may name.

    Raises:
      ConfigError: there is no space, or no such sampler.
    """

    def __init__(
        self,
        *items: str | Space,
        sampler: str,
        objective: str,
        stop: str | None = None,
        seed: int = 0,
        directory: str | Path | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        settings = {"seed": seed, "directory": directory, "allowed": allowed}
        super().__init__(items, "search", objective=objective, **settings)
        self.stop = stop
        names = [one.name for one in self.spaces]
        if duplicate := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"two spaces choose {duplicate}: remove one of them.")
        self.sampler = sampler.partition(":")[0]
        spaces.sampler_factory(self.sampler, self.spaces, parallel=False)
        self.num_trials = _num_trials(sampler, self.spaces)
        spaces.pruner(stop, num_steps=1)

    def job(self, values: Mapping[str, Any]) -> Job:
        """Return the job of values by the names of their spaces.

        Raises:
          ConfigError, InitError: the point fails its checks.
        """
        point: Point = self.points.of(values)
        return jobs_of([point], self.directory, runs.allow_flags(self.allowed))[0]

    def study(self, *, parallel: bool = False) -> Study:
        """Open the study, creating it if there is none.

        Raises:
          ConfigError: the directory holds a different search.
        """
        make = spaces.sampler_factory(self.sampler, self.spaces, parallel=parallel)
        return Study(
            self.directory,
            content={
                "directives": [item for item in self.items if isinstance(item, str)],
                "spaces": [one.text for one in self.spaces],
                "objective": self.objective.text,
            },
            distributions={one.name: one.distribution for one in self.spaces},
            num_trials=self.num_trials,
            sampler=spaces.SamplerPerTrial(make, seed=self.seed),
            pruner=spaces.pruner(self.stop, num_steps=self.points.num_steps()),
            direction=f"{self.objective.way}imize",
        )

    def run(
        self,
        *,
        jobs: int = 1,
        retries: int = 0,
        runner: Runner | None = None,
        console: Console | None = None,
    ) -> Found:
        """Train points until there are enough, or continue a search that was stopped.

        Args:
          jobs: points at a time.
          retries: how often a point that failed is retried.
          runner: runs as many points; defaults to processes on this machine.
          console: where to show progress; defaults to standard output.

        Raises:
          ConfigError: as `points`; or no point could be run.
        """
        runner = runner or LocalRunner(jobs=jobs, retries=retries)
        study = self.study(parallel=jobs > 1)
        with self.opened(console, num_jobs=self.num_trials) as (screen, is_alone):
            driver = Driver(self, study, screen, runner, is_alone=is_alone)
            is_whole = runner.run(driver.jobs(), driver)
        if driver.num_refused and not screen.book.rows:
            raise ConfigError("no point of the search could be run: see the error of each.")
        return Found(
            Results(list(screen.book.rows.values()), self.objective),
            self.objective,
            is_whole,
            f"{len(study.trials)} trials; of those made now, {driver.num_refused} could not be run "
            f"and {driver.num_known} were known",
            lambda row: [runs.train_command(row["directives"], allowed=self.allowed)],
        )

    @property
    def summary(self) -> str:
        return f"{self.num_trials} trials by {self.sampler}"


def _num_trials(text: str, among: Sequence[Space]) -> int:
    """Return the number of trials; a grid has no more than all of its points."""
    name, colon, count = text.partition(":")
    size = 0
    if name == "grid":
        size = math.prod(len(values) for values in spaces.grid_of(among).values())
    if name == "grid" and not colon:
        return size
    if not count.isdecimal() or int(count) < 1:
        raise ConfigError(f"--search={text} needs the number of points: write --search={name}:50.")
    return min(int(count), size or int(count))
