"""Populations: runs that continue as clones of better ones, with changed values.

evolve(Population("config:base", space("tag:LearningRate=log(1e-5,1e-1)"), size=8,
                  objective="validation/loss"), RayRunner(gpus=1))
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from optuna.distributions import FloatDistribution
from rich.console import Console

from fidgpt.compose.catalogue import call_with
from fidgpt.compose.directives import split_directive, takes_numbers
from fidgpt.compose.runs import allow_flags, build_trainer
from fidgpt.graph import ConfigError
from fidgpt.graph.errors import at, raise_all
from fidgpt.graph.expressions import Call, parse_call
from fidgpt.graph.permissions import allowed_changes
from fidgpt.sweep import member
from fidgpt.sweep.member import Lineage, lineage_of
from fidgpt.sweep.progress import Screen
from fidgpt.sweep.results import FAILED, Result, Results
from fidgpt.sweep.runners.jobs import Ending, Job, Signals, failure
from fidgpt.sweep.runners.ray_cluster import RayRunner
from fidgpt.sweep.search import Found, Searched
from fidgpt.sweep.spaces import Points, Space
from fidgpt.train.device import derive_seed
from fidgpt.train.trackers.trackers import Row

_LOOKS = 10  # by default
_RESAMPLED = 0.25  # the share of new values that are drawn again
_FACTORS = (1.2, 0.8)  # of the others


def read_pbt(text: str) -> tuple[int, int | None]:
    """Parse `pbt:8`, or `pbt(population=8,every=100)`: the size, and steps between two looks.

    Raises:
      ConfigError: the text is neither.
    """
    name, colon, size = text.partition(":")
    call = Call(name.strip(), [size.strip()], {}) if colon and size else parse_call(text)
    if call.name != "pbt" or not (call.positional or call.named):
        raise ConfigError(
            f"--search={text} needs the number of runs: write --search=pbt:8, or "
            "--search='pbt(population=8,every=100)'."
        )
    with at(f"--search={text:.80}"):
        return call_with(_sizes, call)


def _sizes(population: int, every: int | None = None) -> tuple[int, int | None]:
    return population, every


class Population(Searched):
    """A set of runs that are compared every so many steps.

    At each look, the worst quarter continues as clones of the best quarter, from their checkpoints,
    with values that are somewhat smaller or larger, or drawn again. The result is a schedule of
    values, and a run that followed it.

    Args:
      items: directives such as `config:base`, and spaces at their positions among them; a resumed
        run must be allowed to change what they choose.
      size: the number of runs.
      every: steps between two looks; defaults to a tenth of the run, or the next number of steps
        after which the objective is measured.
      objective: what to minimize, such as `validation/loss`; `max:NAME` maximizes.
      seed: of all random choices: the same command makes the same ones.
      directory: of the population; defaults to `runs/population-...` of these spaces.
      allowed: the user's own packages whose callables a config may name.

    Raises:
      ConfigError: there is no space, or fewer than two runs.
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
        settings = {"seed": seed, "directory": directory, "allowed": allowed}
        content = (size, every, seed)
        super().__init__(items, "population", objective=objective, content=content, **settings)
        self.size = size
        self._every = every
        if size < 2:
            raise ConfigError(f"--search=pbt:{size}: a population needs at least two runs.")

    def check(self, points: Points) -> None:
        """Refuse spaces that a resumed run may not change.

        Raises:
          ConfigError: there is one.
        """
        raise_all(
            [
                f"--space={one.text}: a population changes values set by tag: or set: and a plain "
                "=, such as --space='tag:LearningRate=log(1e-4,1e-2)'."
                for one in self.spaces
                if not takes_numbers(split_directive(one.prefix)[0])
                or one.prefix.rstrip("= ").endswith(("*", "+", "-"))
            ]
        )
        try:
            allowed_changes(*points.ends())
        except ConfigError as error:
            raise ConfigError(f"--search=pbt resumes runs with other values:\n{error}") from None

    @cached_property
    def every(self) -> int:
        """Steps between two looks.

        Raises:
          ConfigError: the objective is not measured after as many steps.
        """
        trainer = build_trainer(self.points.ends()[0])
        num_steps, name = trainer.num_steps, self.objective.name
        evaluator = trainer.evaluators.get(name.partition("/")[0])

        def is_measured(step: int) -> bool:
            return evaluator is None or evaluator.due(step, num_steps=num_steps)

        def is_possible(every: int) -> bool:
            return all(is_measured(step) for step in range(every, num_steps, every))

        first = self._every or math.ceil(num_steps / _LOOKS)
        choices = range(first, first + 1 if self._every else num_steps)
        if first < num_steps and (every := next(filter(is_possible, choices), None)) is not None:
            return every
        due = [str(step) for step in range(1, num_steps) if is_measured(step)]
        when = f"after steps {', '.join(due[:3])}, ..." if due else "after the last step"
        raise ConfigError(
            f"--search=pbt(every={first}): {name} is measured {when} of {num_steps}, and must be "
            f"measured every {first} steps: change every, or evaluate more often."
        )

    def config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values, rounded as directives write them, with all directives."""
        texts = {one.name: one.value_text(values[one.name]) for one in self.spaces}
        return {
            "values": {
                one.name: float(texts[one.name]) if one.values is None else values[one.name]
                for one in self.spaces
            },
            "directives": [
                one if isinstance(one, str) else one.prefix + texts[one.name] for one in self.items
            ],
        }

    def first_configs(self) -> list[dict[str, Any]]:
        """Return the values and directives that each member begins with."""
        numbers = random.Random(derive_seed(self.seed, "population"))
        drawn = [{one.name: draw(one, numbers) for one in self.spaces} for _ in range(self.size)]
        return list(map(self.config, drawn))

    @property
    def summary(self) -> str:
        return f"{self.size} runs, compared every {self.every} steps"


def draw(space: Space, numbers: random.Random) -> Any:
    """Draw a value of a space; uniform in its logarithm for `log`."""
    if space.values is not None:
        return numbers.choice(space.values)
    assert isinstance(space.distribution, FloatDistribution)  # or its values were finite
    low, high = space.distribution.low, space.distribution.high
    if space.distribution.log:
        return math.exp(numbers.uniform(math.log(low), math.log(high)))
    return numbers.uniform(low, high)


@dataclass(frozen=True)
class _Stretch(Job):
    """A run of a population until the next look.

    Attributes:
      lineage: its descent.
      until: the step of the look.
    """

    lineage: Lineage = field(kw_only=True)
    until: int = field(default=0, kw_only=True, compare=False)

    @property
    def start_command(self) -> list[str]:
        return [*super().start_command, f"--until_step={self.until}"]

    @property
    def resume_command(self) -> list[str]:
        # A clone's directory is copied with the values of its parent.
        varied = self.lineage.varied if self.lineage.parent else ()
        changes = [f"--config={text}" for text in varied]
        return [*super().resume_command, *changes, "--allow_noop", f"--until_step={self.until}"]

    def finish(self) -> Row:
        return super().finish() if self.until == self.point.cost.num_steps else {}


class _Evolution:
    """Trains members from look to look, and replaces the worst by clones of the best.

    Runs reach a look together. What earlier processes trained is read from their files, so the same
    looks lead to the same clones.
    """

    def __init__(self, population: Population, screen: Screen) -> None:
        self.lineages = member.read_lineages(population.directory)
        self._population = population
        self._screen = screen
        self._running: dict[str, Job] = {}  # shown as running, by fingerprint
        self._failed: set[str] = set()  # fingerprints
        self.progressed, self.waits, self.stops = screen.progressed, screen.waits, screen.stops
        self.log, self.tick = screen.log, screen.tick
        self._members = [
            self._stretch(lineage_of(config, member=i))
            for i, config in enumerate(population.first_configs())
        ]

    def started(self, job: Job) -> None:
        if job.point.fingerprint not in self._running:
            self._running[job.point.fingerprint] = job
            self._screen.started(job)

    def ended(self, job: Job, ending: Ending, *, again: bool) -> None:
        if ending.status != "finished":  # which `_reach` shows at the last look
            self._end(job, ending, again=again)

    def _end(self, job: Job, ending: Ending, *, again: bool = False) -> None:
        self._running.pop(job.point.fingerprint, None)
        if ending.status in FAILED and not again:
            self._failed.add(job.point.fingerprint)
        self._screen.ended(job, ending, again=again)

    def run(self, runner: RayRunner) -> bool:
        """Train all members; returns False if a signal stopped that."""
        num_steps, every = self._members[0].point.cost.num_steps, self._population.every
        signals: list[int] = []
        with Signals(lambda number, _: signals.append(number)):
            for step in (*range(every, num_steps, every), num_steps):
                if signals or not self._reach(step, runner):
                    break
                if step < num_steps:
                    self._replace_worst(step)
            else:
                return True
        for job in list(self._running.values()):
            self._end(job, Ending("stopped"))
        return False

    def _reach(self, step: int, runner: RayRunner) -> bool:
        """Train all members until a look; returns False if a signal stopped that.

        Raises:
          ConfigError: a run does not report the objective.
        """
        self._members = [replace(one, until=step) for one in self._members]
        left = [one for one in self._members if one.point.fingerprint not in self._failed]
        todo = [one for one in left if self._value(one) is None]
        if todo and not runner.run(todo, self):
            return False
        name = self._population.objective.name
        for one in left:
            value = self._value(one)
            if one.point.fingerprint in self._failed:
                continue
            if value is None:
                there = ", ".join(self._screen.book.row(one)["metrics"])
                raise ConfigError(f"no run reports {name}, but {there}")
            if math.isnan(value):
                self._end(one, failure(f"{name} is NaN at step {step:,}"))
            elif step == one.point.cost.num_steps:
                one.finish()
                if self._screen.book.row(one)["status"] != "finished":
                    self._end(one, Ending("finished"))
        return True

    def _value(self, one: _Stretch) -> float | None:
        return member.measured(one.directory, one.until, self._population.objective.name)

    def _replace_worst(self, step: int) -> None:
        """Replace the worst quarter by clones of the best, as Ray Tune's algorithm does."""
        population, objective = self._population, self._population.objective
        numbers = random.Random(derive_seed(population.seed, "look", step))

        def quality(index: int) -> float:
            one = self._members[index]
            value = None if one.point.fingerprint in self._failed else self._value(one)
            return -objective.sorted_by(objective.worst if value is None else value)

        ranked = sorted(range(population.size), key=quality)
        count = math.ceil(population.size / 4)
        for index in ranked[:count]:
            parent = self._members[numbers.choice(ranked[-count:])]
            config = population.config(self._changed(parent.lineage.values, numbers))
            if parent.point.fingerprint in self._failed:
                continue
            old, fingerprint = self._members[index], parent.point.fingerprint
            lineage = lineage_of(config, member=index, parent=fingerprint, step=step)
            if self._screen.book.row(old)["status"] not in ("stopped early", *FAILED):
                self._end(old, Ending("stopped early", f"{lineage.short} continues in its place"))
            self._members[index] = clone = self._stretch(lineage)
            if not clone.is_begun:
                member.copy_run(parent.directory, clone.directory, step=step)

    def _changed(self, values: Mapping[str, Any], numbers: random.Random) -> dict[str, Any]:
        """Return values that are somewhat smaller or larger, or drawn again."""
        changed: dict[str, Any] = {}
        for space in self._population.spaces:
            known, value = space.values, values[space.name]
            if numbers.random() < _RESAMPLED:
                changed[space.name] = draw(space, numbers)
            elif known is None:
                changed[space.name] = value * numbers.choice(_FACTORS)
            else:
                at = known.index(value) + numbers.choice((-1, 1))
                changed[space.name] = known[min(max(at, 0), len(known) - 1)]
        return changed

    def _stretch(self, lineage: Lineage) -> _Stretch:
        """Return a run, which is recorded if it is new."""
        directory, book = self._population.directory, self._screen.book
        point = self._population.points.of(lineage.values)
        start = f" from step {lineage.step}" if lineage.parent is not None else ""
        point = replace(
            point,
            fingerprint=lineage.fingerprint,
            name=f"member {lineage.member}{start}: {point.name}",
            values={"member": str(lineage.member), **point.values},
        )
        log = directory / "logs" / f"{lineage.short}.log"
        flags = tuple(allow_flags(self._population.allowed))
        made = _Stretch(point, directory / lineage.short, log, flags, lineage=lineage)
        if lineage.fingerprint not in self.lineages:
            self.lineages[lineage.fingerprint] = lineage
            member.add_lineage(directory, lineage)
            if lineage.parent is not None:
                values = ", ".join(f"{key}={value}" for key, value in lineage.values.items())
                self.log(
                    f"member {lineage.member} continues from {book.rows[lineage.parent]['name']} "
                    f"after step {lineage.step:,}, with {values}"
                )
        book.add(made)
        if lineage.parent is not None:
            self._screen.more()
        return made


def evolve(population: Population, runner: RayRunner, *, console: Console | None = None) -> Found:
    """Train a population on a Ray cluster, or continue one that was stopped.

    Which runs are cloned is decided once all of them have reached a look, by a seed: so the same
    command makes the same choices, and nothing is trained twice.

    Args:
      population: what is trained.
      runner: the cluster, and the resources of a run; runs for which the cluster has no room take
        turns, whatever its `jobs`.
      console: where to show progress; defaults to standard output.

    Raises:
      ConfigError: the population cannot be trained, or Ray cannot run it, or another process does;
        or the first look shows that the objective is not measured.
    """
    if runner.processes != 1:
        raise ConfigError(
            f"processes={runner.processes}: a member of a population is one process; leave it out."
        )
    runner = replace(runner, jobs=population.size)
    directory, objective = population.directory, population.objective
    with population.opened(console, num_jobs=population.size) as (screen, is_alone):
        if not is_alone:
            raise ConfigError(f"another process trains the population in {directory}: stop it.")
        evolution = _Evolution(population, screen)
        with runner.connected(screen.log):
            is_whole = evolution.run(runner)
    lineages = evolution.lineages

    def commands(row: Result) -> list[str]:
        line = member.ancestors(lineages, row["fingerprint"])
        return member.schedule(line, run_dir="runs/best", flags=allow_flags(population.allowed))

    results = Results(list(screen.book.rows.values()), objective)
    clones = sum(one.parent is not None for one in lineages.values())
    summary = f"{len(results)} runs, {clones} of them clones of others"
    return Found(results, objective, is_whole, summary, commands)
