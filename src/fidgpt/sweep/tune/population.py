"""Population-based training."""

import hashlib
import json
import math
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from fidgpt.compose.catalogue import call_with, own_catalogue
from fidgpt.compose.runs import allow_flags, build_trainer, name_of_base
from fidgpt.compose.spelling import split_directive
from fidgpt.graph import ConfigError
from fidgpt.graph.errors import at, raise_all
from fidgpt.graph.formulas import Call, parse_call
from fidgpt.graph.permissions import allowed_changes
from fidgpt.sweep.axes import NUMBERS
from fidgpt.sweep.objective import Objective, objective_of, refuse_unreportable, refuse_unreported
from fidgpt.sweep.points import Cost, Point
from fidgpt.sweep.progress import Screen, opened
from fidgpt.sweep.results import Result
from fidgpt.sweep.runners.attempt import Ending, Job, jobs_of
from fidgpt.sweep.runners.ray_cluster import RayRunner
from fidgpt.sweep.runners.work import failure
from fidgpt.sweep.spaces import Points, Space
from fidgpt.sweep.tables import Results, results_table
from fidgpt.sweep.tune.fitting import (
    Follower,
    Stop,
    broken,
    callback,
    driven_alone,
    fit,
    surroundings_of,
)
from fidgpt.sweep.tune.member import PINS, Descent, Lineage, Plan, member_of, schedule
from fidgpt.sweep.tune.trial import refuse_unmeasured, unmeasured
from fidgpt.train.device import derive_seed

_LOOKS = 10  # at a population, unless said: a tenth of the run between two
_FILE = "population.json"  # in the directory of one: what its choices depend on


def read_pbt(text: str) -> tuple[int, int | None]:
    """`pbt:8`, or `pbt(population=8,every=100)`: how many runs, and steps between two looks.

    Raises:
      ConfigError: it says something else.
    """
    name, colon, size = text.partition(":")
    call = Call(name.strip(), [size.strip()], {}) if colon and size else parse_call(text)
    if call.name != "pbt" or not (call.positional or call.named):
        raise ConfigError(
            f"--search={text} says not how many runs: write --search=pbt:8, or "
            "--search='pbt(population=8,every=100)'."
        )
    with at(f"--search={text:.80}"):
        return call_with(_sizes, call)


def _sizes(population: int, every: int | None = None) -> tuple[int, int | None]:
    return population, every


class Population:
    """A set of runs that are looked at every so many steps.

    At each look, the worst quarter goes on as clones of the best quarter, from their checkpoints,
    with numbers that are somewhat smaller or larger, or drawn anew. What comes of it is a schedule
    of numbers, and a run that went by it.

    Args:
      items: directives such as `config:base`, and spaces in the places where theirs belong; what
        they choose must be what a run may go on with another of.
      size: how many runs.
      every: steps between two looks; a tenth of the run unless said, where the objective is
        measured then.
      objective: what is to get small, such as `validation/loss`; or large, where it begins with
        `max:`.
      seed: of all that is drawn: the same command makes the same choices.
      directory: where all of it lies; `runs/population-...` of these spaces unless said.
      allowed: packages of the user's own whose callables a config may name.

    Raises:
      ConfigError: there is no space, or too few runs.
    """

    def __init__(
        self,
        *items: str | Space,
        size: int,
        every: int | None = None,
        objective: str,
        seed: int = 0,
        directory: str | Path | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        self.items = list(items)
        self.spaces = [item for item in items if isinstance(item, Space)]
        self.size = size
        self.objective = objective_of(objective)
        self.seed = seed
        self.allowed = tuple(allowed)
        self._every = every
        if not self.spaces:
            raise ConfigError(
                "a population needs a space: --space='tag:LearningRate=log(1e-4,1e-2)', in quotes."
            )
        if size < 2:
            raise ConfigError(f"--search=pbt:{size}: a population has two runs at least.")
        self.directory = Path(directory or Path("runs") / self._default_name())

    @property
    def said(self) -> dict[str, Any]:
        """All that its choices depend on, in plain values."""
        return {
            "items": [item.text if isinstance(item, Space) else item for item in self.items],
            "objective": self.objective.text,
            "size": self.size,
            "every": self._every,
            "seed": self.seed,
        }

    def _default_name(self) -> str:
        digest = hashlib.sha256(repr(self.said).encode()).hexdigest()[:8]
        base = name_of_base([one for one in self.items if isinstance(one, str)])
        return f"population-{base}-{digest}"

    @cached_property
    def points(self) -> Points:
        """What makes points, looked through for mistakes that all of them would have.

        Raises:
          ConfigError: there is such a mistake, or no run reports the objective, or a run may not
            go on with another value of a space.
        """
        made = Points(self.items, own_catalogue(self.allowed))
        refuse_unreportable(self.objective, made.check())
        raise_all([_refusal(space) for space in self.spaces if not _is_plain(space)])
        try:
            allowed_changes(*made.ends())
        except ConfigError as error:
            raise ConfigError(f"--search=pbt goes on with other values:\n{error}") from None
        return made

    @cached_property
    def every(self) -> int:
        """Steps between two looks.

        Raises:
          ConfigError: the objective is not measured then.
        """
        first, _ = self.points.ends()
        trainer = build_trainer(first)
        if self._every is not None:
            refuse_unmeasured(trainer, self.objective, self._every)
            return self._every
        about = max(1, math.ceil(trainer.num_steps / _LOOKS))
        for every in range(about, trainer.num_steps):
            if unmeasured(trainer, self.objective, every) is None:
                return every
        raise ConfigError(
            f"{self.objective.name} is not measured before the run's last step, "
            f"{trainer.num_steps}: there is nothing to compare a population by on the way."
        )

    @property
    def lineage(self) -> Lineage:
        """Which run was cloned from which, as far as it has come."""
        return Lineage(self.directory)

    def keep(self) -> None:
        """Takes down in the directory whose it is."""
        path = self.directory / _FILE
        if not path.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.said) + "\n", encoding="utf-8")

    def refuse_other(self) -> None:
        """Refuses a directory of another population, whose choices were others.

        Raises:
          ConfigError: it is that.
        """
        path = self.directory / _FILE
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else self.said
        if differing := [name for name in self.said if known.get(name) != self.said[name]]:
            told = "; ".join(
                _difference(name, known.get(name), self.said[name]) for name in differing
            )
            raise ConfigError(
                f"{self.directory} holds another population, {told}: name another --run_dir."
            )

    def __rich__(self) -> RenderableType:
        self.refuse_other()
        lines = [
            f"{self.size} runs, looked at every {self.every} steps, so that {self.objective.aim}, "
            f"in {self.directory}",
            *self.points.moves(),
        ]
        return Group(*map(Text, lines))


def _difference(name: str, there: Any, here: Any) -> str:
    """In what two populations differ, in words."""
    if name != "items":
        first, second = (
            f"{name}={one}" if one is not None else f"no {name}" for one in (there, here)
        )
        return f"with {first} where this one has {second}"
    gone, new = ([one for one in a if one not in b] for a, b in ((there, here), (here, there)))
    if not (gone or new):
        return "with the same directives in another order"
    left, right = (", ".join(map(str, ones)) or "nothing" for ones in (gone, new))
    return f"with {left} where this one has {right}"


def _is_plain(space: Space) -> bool:
    """Whether a value is said as it is, and not as a change of what is there."""
    kind, rest = split_directive(space.prefix)
    return kind in NUMBERS and not rest.rstrip("= ").endswith(("*", "+", "-"))


def _refusal(space: Space) -> str:
    return (
        f"--space={space.text}: a population goes on with other values of what is said by tag: or "
        "set: and a plain =, such as --space='tag:LearningRate=log(1e-4,1e-2)'."
    )


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


def mutations_of(spaces: Sequence[Space]) -> dict[str, Any]:
    """What Tune may make of each space: a distribution of numbers, or values side by side."""
    from ray import tune

    return {
        one.name: (
            (tune.loguniform if one.distribution.log else tune.uniform)(
                one.distribution.low, one.distribution.high
            )
            if one.values is None
            else one.values
        )
        for one in spaces
    }


def distributions_of(spaces: Sequence[Space]) -> dict[str, Any]:
    """What Tune may draw of each space, values side by side being as likely as each other."""
    from ray import tune

    return {
        name: tune.choice(what) if isinstance(what, list) else what
        for name, what in mutations_of(spaces).items()
    }


def first_values(spaces: Sequence[Space], count: int, *, seed: int) -> list[dict[str, Any]]:
    """The values that each member of a population begins with, drawn of its distributions."""
    import numpy as np

    numbers = np.random.default_rng(derive_seed(seed, "population"))
    drawn = distributions_of(spaces)
    return [
        rounded(spaces, {name: one.sample(random_state=numbers) for name, one in drawn.items()})
        for _ in range(count)
    ]


def rounded(spaces: Sequence[Space], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they are said in directives, and so inside their ranges."""
    return {
        one.name: float(one.value_text(values[one.name]))
        if one.values is None
        else values[one.name]
        for one in spaces
    }


def scheduler_of(spaces: Sequence[Space], *, every: int, seed: int) -> Any:
    """Tune's scheduler, which looks at all members together, and mutates by a seed.

    So the same command makes the same choices, and one that was stopped goes on with them.
    """
    from ray.tune.schedulers import PopulationBasedTraining

    class Evolution(PopulationBasedTraining):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            before = random.getstate()
            random.seed(derive_seed(seed, "look", result.get("step", 0)))
            try:
                return super().on_trial_result(tune_controller, trial, result)
            finally:
                random.setstate(before)

        def _quantiles(self) -> tuple[list[Any], list[Any]]:
            """The worst and the best; what failed has no checkpoint to be cloned from."""
            worst, best = super()._quantiles()
            best = [one for one in best if self._trial_state[one].last_score != -math.inf]
            return (worst, best) if best else ([], [])

    return Evolution(
        time_attr="step",
        perturbation_interval=every,
        hyperparam_mutations=mutations_of(spaces),
        custom_explore_fn=lambda values: rounded(spaces, values),
        require_attrs=False,
        synch=True,
        log_config=False,
    )


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
    first = population.points.of()  # in what it costs, all runs are alike
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
