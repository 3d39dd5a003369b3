"""Running a population by Ray Tune, and what came of it: the best run, and its schedule."""

import shutil
from dataclasses import dataclass
from functools import partial

from rich.console import Console, Group, RenderableType
from rich.text import Text

from fidgpt.cli.running.saying import allow_flags
from fidgpt.sweep.points.point import Point
from fidgpt.sweep.results.files import Result
from fidgpt.sweep.results.objective import Objective
from fidgpt.sweep.results.results import Results
from fidgpt.sweep.runners.job import jobs_of
from fidgpt.sweep.runners.ray_cluster import RayRunner
from fidgpt.sweep.search.space import Space
from fidgpt.sweep.showing.opening import opened
from fidgpt.sweep.showing.tables import results_table
from fidgpt.sweep.tune.callback import callback
from fidgpt.sweep.tune.cloning import PINS
from fidgpt.sweep.tune.evolution import distributions_of, first_values, scheduler_of
from fidgpt.sweep.tune.fitting import Stop, driven_alone, fit, surroundings_of
from fidgpt.sweep.tune.lineage import Lineage, schedule
from fidgpt.sweep.tune.member import Plan, member_of
from fidgpt.sweep.tune.population import Population
from fidgpt.sweep.tune.population_follower import PopulationFollower


@dataclass(frozen=True)
class Evolved:
    """What a population came to.

    Attributes:
      results: the rows of all runs, those that others were cloned over included.
      objective: what was to get small, or large.
      lineage: which run was cloned from which.
      flags: what every command is told.
      is_whole: whether it came to its end, and no signal stopped it.
    """

    results: Results
    objective: Objective
    lineage: Lineage
    flags: tuple[str, ...]
    is_whole: bool

    @property
    def best(self) -> Result | None:
        """The row that is best by the objective among those that are done; None without any."""
        done = [row for row in self.results if row["status"] == "finished"]
        return Results(done, self.objective).best() if done else None

    @property
    def schedule(self) -> list[str]:
        """The commands that make the best run anew, with all the changes on its way."""
        if (row := self.best) is None:
            return []
        line = self.lineage.ancestors(row["fingerprint"])
        return schedule(line, run_dir="runs/best", flags=self.flags)

    def __rich__(self) -> RenderableType:
        lines = [
            f"{len(self.results)} runs, {sum(one.parent is not None for one in self.lineage)} "
            "of them clones of others"
        ]
        if (row := self.best) is not None:
            value = row["metrics"][self.objective.name]
            lines.append(f"best: {row['name']}, {self.objective.name} {value:.4f}")
            lines += [f"  {command}" for command in self.schedule]
        return Group(results_table(self.results, self.objective), *map(Text, lines))


def evolve(population: Population, runner: RayRunner, *, console: Console | None = None) -> Evolved:
    """Trains a population on a Ray cluster, or on from where it was stopped.

    Which runs are cloned is decided once all of them have come to a look, by a seed: so the same
    command makes the same choices, no stretch is trained twice, and `lineage.jsonl` says all of it.

    Args:
      population: what is trained.
      runner: the cluster, and what a run needs of it; where it has no room for all at a time,
        whatever `jobs` says, they take turns.
      console: where to tell of it; standard output unless said.

    Raises:
      ConfigError: the population cannot be trained, or Ray cannot run it, or another process does;
        or the first look shows that the objective is not measured.
    """
    directory, objective = population.directory, population.objective
    first = population.points.first()  # in what it costs, all runs are alike
    flags = tuple(allow_flags(population.allowed))
    plan = _plan(population, runner, first, flags)  # which refuses before anything is written
    population.refuse_other()
    population.keep()
    with opened(
        directory,
        [],
        items=population.points.items,
        objective=objective,
        console=console,
        num_jobs=population.size,
    ) as screen:
        follower = PopulationFollower(
            screen,
            population.lineage,
            objective=objective,
            cost=first.cost,
            directory=directory,
            flags=flags,
        )
        stop = Stop(screen.stops, lambda: follower.mistake is not None)
        with driven_alone(directory), runner.connected(screen.say):
            _fit(population, plan, runner, follower, stop)
            follower.stopped()
            if follower.mistake is not None:
                raise follower.mistake
            if not stop.is_asked:
                shutil.rmtree(directory / PINS, ignore_errors=True)
    return Evolved(
        Results(list(screen.book.rows.values()), objective),
        objective,
        population.lineage,
        flags,
        not stop.is_asked,
    )


def _plan(population: Population, runner: RayRunner, first: Point, flags: tuple[str, ...]) -> Plan:
    directory, objective = population.directory, population.objective
    return Plan(
        folder=str(directory.resolve()),
        items=[_item(item) for item in population.items],
        program=jobs_of([first], directory, flags)[0].program,
        every=population.every,
        num_steps=first.cost.num_steps,
        objective=objective.name,
        worst=objective.worst,
        retries=runner.retries,
        surroundings=surroundings_of(runner, directory),
    )


def _fit(
    population: Population, plan: Plan, runner: RayRunner, follower: PopulationFollower, stop: Stop
) -> None:
    from ray.tune.search import BasicVariantGenerator

    begins = first_values(population.spaces, population.size, seed=population.seed)
    fit(
        partial(member_of, plan=plan),
        runner,
        population.directory,
        objective=population.objective,
        searcher=BasicVariantGenerator(points_to_evaluate=begins),
        scheduler=scheduler_of(population.spaces, every=plan.every, seed=population.seed),
        max_concurrent=None,  # all of them exist at a time, and as many train as there is room for
        callback=callback(follower),
        stop=stop,
        num_samples=population.size,
        choices=distributions_of(population.spaces),
    )


def _item(item: str | Space) -> str | tuple[str, str]:
    return item if isinstance(item, str) else (item.name, item.prefix)
