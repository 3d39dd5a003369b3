"""Population-based training on a Ray cluster, or on a Ray of this machine alone."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from fidgpt.compose.runs import allow_flags
from fidgpt.graph import ConfigError
from fidgpt.sweep import member
from fidgpt.sweep.member import Lineage, lineage_of
from fidgpt.sweep.population import Population, draw
from fidgpt.sweep.progress import Screen, opened
from fidgpt.sweep.results import Result
from fidgpt.sweep.runners.jobs import Ending, Job
from fidgpt.sweep.runners.ray_cluster import RayRunner
from fidgpt.sweep.runners.scheduler import Signals, failure
from fidgpt.sweep.search import Found, only_driver
from fidgpt.sweep.tables import FAILED, Results
from fidgpt.train.device import derive_seed
from fidgpt.train.trackers.trackers import Row

_RESAMPLED = 0.25  # the share of new values that are drawn again
_FACTORS = (1.2, 0.8)  # of the others


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
    with (
        opened(
            directory,
            [],
            items=population.points.items,
            objective=objective,
            console=console,
            num_jobs=population.size,
        ) as screen,
        only_driver(directory) as is_alone,
    ):
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
