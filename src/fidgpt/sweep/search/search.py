"""Searches."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from optuna import Trial
from rich.console import Console, Group, RenderableType
from rich.text import Text

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.runs import allow_flags, name_of_base, train_command
from fidgpt.graph import ConfigError
from fidgpt.sweep.objective import Objective, objective_of, refuse_unreportable
from fidgpt.sweep.points import Point
from fidgpt.sweep.progress import Screen, opened
from fidgpt.sweep.results import Result
from fidgpt.sweep.runners.attempt import Ending, Job, Runner, jobs_of
from fidgpt.sweep.runners.local import LocalRunner
from fidgpt.sweep.search.sampling import ByTrial, pruner, seeded_sampler, size_of_grid
from fidgpt.sweep.search.space import Points, Space
from fidgpt.sweep.search.study import Counts, Ledger, Study, present
from fidgpt.sweep.tables import Results, results_table


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


LedgerOf = Callable[[Any], Ledger[Any]]  # of what hears what came of trials
Drive = Callable[[Study, Screen, LedgerOf], bool]


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
      results: the rows of all points that are in its table.
      objective: what was to get small, or large.
      num_trials: how often something was chosen.
      counts: what became of trials without a point of their own.
      is_whole: whether it came to its end, and no signal stopped it.
      allowed: packages of the user's own that configs may name.
    """

    results: Results
    objective: Objective
    num_trials: int
    counts: Counts
    is_whole: bool
    allowed: tuple[str, ...] = ()

    @property
    def best(self) -> Result | None:
        """The row that is best by the objective among those that are done; None without any."""
        return self.results.best()

    def __rich__(self) -> RenderableType:
        lines = [
            f"{self.num_trials} trials; of those made now, {self.counts.refused} could not be run "
            f"and {self.counts.known} were known"
        ]
        if (row := self.best) is not None:
            value = row["metrics"][self.objective.name]
            lines += [
                f"best: {row['name']}, {self.objective.name} {value:.4f}",
                f"  {train_command(row['directives'], allowed=self.allowed)}",
            ]
        return Group(results_table(self.results, self.objective), *map(Text, lines))


class Search:
    """Points that a sampler chooses, so that an objective gets small, or large.

    Args:
      items: directives such as `config:base`, and spaces in the places where theirs belong.
      sampler: tpe, random, grid or cmaes, with how many trials: `tpe:50`; of a grid all, unless
        said.
      objective: what is to get small, such as `validation/loss`; or large, where it begins with
        `max:`, as `max:tasks/arc_easy/acc` does.
      stop: asha or median, which end points that are not worth going on with; None for neither.
      seed: of the sampler: a search with one job at a time is the same again.
      directory: where all of it lies; `runs/search-...` of these spaces unless said.
      allowed: packages of the user's own whose callables a config may name.

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
        self.items = list(items)
        self.spaces = [item for item in items if isinstance(item, Space)]
        self.objective = objective_of(objective)
        self.stop = stop
        self.seed = seed
        self.allowed = tuple(allowed)
        _refuse_none_or_two(self.spaces)
        self.sampler = sampler.partition(":")[0]
        seeded_sampler(self.sampler, self.spaces, side_by_side=False)
        self.num_trials = _count(sampler, self.spaces)
        pruner(stop, num_steps=1)
        self.directory = Path(directory or Path("runs") / self._default_name())

    def _default_name(self) -> str:
        said = [item.said if isinstance(item, Space) else item for item in self.items]
        digest = hashlib.sha256(repr([said, self.objective.text]).encode()).hexdigest()[:8]
        return (
            f"search-{name_of_base([one for one in self.items if isinstance(one, str)])}-{digest}"
        )

    @cached_property
    def points(self) -> Points:
        """What makes points, looked through for mistakes that all of them would have.

        Raises:
          ConfigError: there is such a mistake, or no run reports the objective.
        """
        made = Points(self.items, own_catalogue(self.allowed))
        refuse_unreportable(self.objective, made.check())
        return made

    def run(
        self,
        *,
        jobs: int = 1,
        retries: int = 0,
        runner: Runner | None = None,
        console: Console | None = None,
    ) -> Found:
        """Trains points until there were enough, or on from where a search was stopped.

        Args:
          jobs: processes at a time.
          retries: how often a point that failed is tried again.
          runner: what runs the points, of so many jobs; processes on this machine unless said.
          console: where to tell of it; standard output unless said.

        Raises:
          ConfigError: as `points` does; or none of the points could be run.
        """
        runs = runner or LocalRunner(jobs=jobs, retries=retries)

        def drive(study: Study, screen: Screen, ledger_of: LedgerOf) -> bool:
            with present(self.directory) as is_alone:
                driver = Driver(study, ledger_of(study), screen, runs.end_early, is_alone)
                return runs.run(driver.jobs(), driver)

        return self.driven_by(drive, side_by_side=jobs > 1, console=console)

    def driven_by(
        self, drive: Drive, *, side_by_side: bool, console: Console | None = None
    ) -> Found:
        """The same by another engine.

        Args:
          drive: asks the study for points and trains them; False where a signal stopped that. It
            gets the study, what hears of all that happens, and what makes the ledger.
          side_by_side: whether points are trained at the same time.
          console: where to tell of it; standard output unless said.

        Raises:
          ConfigError: as `points` does; or none of the points could be run.
        """
        points = self.points
        self.directory.mkdir(parents=True, exist_ok=True)
        study, counts = self._study(points, side_by_side=side_by_side), Counts()
        with opened(
            self.directory,
            [],
            items=points.items,
            objective=self.objective,
            console=console,
            num_jobs=self.num_trials,
        ) as screen:
            book = screen.book

            def ledger_of(told: Any) -> Ledger[Any]:
                return Ledger(told, book, screen, self.objective, points.of, self._job, counts)

            is_whole = drive(study, screen, ledger_of)
        if counts.refused and not book.rows:
            raise ConfigError("no point of the search could be run: see what is said of each.")
        results = Results(list(book.rows.values()), self.objective)
        return Found(results, self.objective, len(study.trials), counts, is_whole, self.allowed)

    def _study(self, points: Points, *, side_by_side: bool) -> Study:
        make = seeded_sampler(self.sampler, self.spaces, side_by_side=side_by_side)
        return Study(
            self.directory,
            directives=[item for item in self.items if isinstance(item, str)],
            spaces=self.spaces,
            objective=self.objective,
            sampler=ByTrial(make, seed=self.seed),
            pruner=pruner(self.stop, num_steps=points.num_steps() or 1),
            num_trials=self.num_trials,
        )

    def _job(self, point: Point) -> Job:
        return jobs_of([point], self.directory, allow_flags(self.allowed))[0]

    def __rich__(self) -> RenderableType:
        lines = [
            f"{self.num_trials} trials by {self.sampler}, so that {self.objective.aim}, in "
            f"{self.directory}",
            *self.points.moves(),
        ]
        return Group(*map(Text, lines))


def _count(text: str, spaces: Sequence[Space]) -> int:
    """How many trials are asked for; a grid has all of its points unless said, and no more."""
    name, colon, count = text.partition(":")
    if name == "grid" and not colon:
        return size_of_grid(spaces)
    if not count.isdecimal() or int(count) < 1:
        raise ConfigError(f"--search={text} says not how many points: write --search={name}:50.")
    return min(int(count), size_of_grid(spaces)) if name == "grid" else int(count)


def _refuse_none_or_two(spaces: Sequence[Space]) -> None:
    if not spaces:
        raise ConfigError(
            "a search needs a space: --space='tag:LearningRate=log(1e-5,1e-1)', in quotes."
        )
    names = [space.name for space in spaces]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two spaces choose {name}: say one of them.")
