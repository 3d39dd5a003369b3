"""A sweep: many configs as one set, made, looked at, run and read back."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import fiddle as fdl
import torch
from rich.console import Console, Group, RenderableType
from rich.text import Text

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.directives import compose
from fidgpt.compose.runs import allow_flags, name_of_base
from fidgpt.compose.spelling import split_directive
from fidgpt.graph import ConfigError, dump, fingerprint
from fidgpt.sweep.moves import axis_names
from fidgpt.sweep.objective import (
    Objective,
    described,
    kept,
    neighbours,
    objective_of,
    refuse_unreportable,
)
from fidgpt.sweep.points import Plan, Point, plan
from fidgpt.sweep.progress import opened
from fidgpt.sweep.report.commands import points_html
from fidgpt.sweep.results import read_table
from fidgpt.sweep.runners.attempt import Job, Runner, jobs_of
from fidgpt.sweep.runners.local import LocalRunner
from fidgpt.sweep.tables import Results, points_table, read_results, summary_lines
from fidgpt.sweep.values import Axis, Item
from fidgpt.train.device import peak_flops
from fidgpt.train.summary_text import UTILISATION


class Sweep:
    """A set of points: directives, with axes in the places where theirs belong among them.

    Nothing runs before `run` is called, and no point is run that is done in the directory.

    Args:
      items: directives such as `config:base`, and axes, which multiply. A graph may be the first
        of them: it is written into the directory, and `config_file:` begins with it.
      directory: where the runs and their results lie; `runs/sweep-...` of these axes unless said.
      objective: what points are compared by, such as `loss`, or `max:tasks/arc_easy/acc`, of which
        more is better; the held-out loss unless said.
      allowed: packages of the user's own whose callables a config may name.

    Raises:
      ConfigError: a graph is not the first item, or the objective says not which way is better.
    """

    def __init__(
        self,
        *items: Item | fdl.Config,
        directory: str | Path | None = None,
        objective: str | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        self.allowed = tuple(allowed)
        self.objective = None if objective is None else objective_of(objective)
        base, said = _apart(items)
        self._said = said if base is None else [fingerprint(base), *said]
        self.directory = Path(directory or Path("runs") / default_name(self._said))
        self.items = said if base is None else [self._begun_with(base), *said]

    def _begun_with(self, base: fdl.Config) -> str:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"base-{fingerprint(base)[:12]}.json"
        path.write_text(dump(base), encoding="utf-8")
        return f"config_file:{path}"

    @cached_property
    def plan(self) -> Plan:
        """The points, all composed and checked.

        Raises:
          ConfigErrors: some are wrong, and all of those are named.
          ConfigError: no run reports the objective.
        """
        made = plan(self.items, allowed=self.allowed)
        if self.objective is not None:
            said = made.points[0].directives
            refuse_unreportable(self.objective, compose(said, own_catalogue(self.allowed)))
        return made

    @property
    def compared_by(self) -> Objective | None:
        """The objective, as said now or when it was run before; None for the held-out loss."""
        return self.objective or kept(self.directory)

    @property
    def points(self) -> list[Point]:
        """The points, each fingerprint once.

        Raises:
          ConfigErrors: as `plan` does.
        """
        return self.plan.points

    @property
    def jobs(self) -> list[Job]:
        """The points as work: command lines and directories, for any engine."""
        return jobs_of(self.points, self.directory, allow_flags(self.allowed))

    def run(
        self,
        *,
        jobs: int = 1,
        retries: int = 0,
        runner: Runner | None = None,
        console: Console | None = None,
    ) -> Results:
        """Trains every point that is not done yet; one that fails keeps no other from it.

        Args:
          jobs: processes at a time.
          retries: how often a point that failed is tried again.
          runner: what runs the points; processes on this machine unless said.
          console: where to tell of it; standard output unless said.

        Returns:
          What came of every point, those that were stopped by a signal included.

        Raises:
          ConfigErrors: some points are wrong; none was started then.
        """
        every = self.jobs
        with opened(
            self.directory, every, items=self._said, objective=self.compared_by, console=console
        ) as screen:
            todo = [job for job in every if screen.book.row(job)["status"] != "finished"]
            if len(todo) < len(every):
                screen.say(f"{len(every) - len(todo)} of {len(every)} points are done already.")
            (runner or LocalRunner(jobs=jobs, retries=retries)).run(todo, screen)
        return Results(list(screen.book), self.compared_by)

    def results(self) -> Results:
        """What came of the points so far, read from the directory."""
        return read_results(self.directory)

    def __rich__(self) -> RenderableType:
        speed, lines = self._summary()
        return Group(points_table(self.plan, flops_per_second=speed), *map(Text, lines))

    def _summary(self) -> tuple[float, list[str]]:
        """Operations per second, and what stands below a table of the points."""
        speed, basis = self._speed()
        done = {job.point.fingerprint for job in self.jobs if job.is_done}
        lines = summary_lines(self.plan, flops_per_second=speed, basis=basis, done=done)
        others = neighbours(self.directory, described(self._said))
        return speed, [*lines, f"in {self.directory}", *(f"warning: {one}" for one in others)]

    def _speed(self) -> tuple[float, str]:
        """Operations per second of the points that are done here, or what this machine may do."""
        rows = [one for one in read_table(self.directory) if one["status"] == "finished"]
        done = {one["fingerprint"]: one["seconds"] for one in rows}
        known = [(one.cost.flops, done.get(one.fingerprint, 0.0)) for one in self.points]
        known = [(flops, seconds) for flops, seconds in known if seconds]
        if known:
            flops, seconds = map(sum, zip(*known, strict=True))
            return flops / seconds, f"as the {len(known)} that ran so far"
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        peak = peak_flops(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
        basis = f"at {UTILISATION:.0%} of {peak / 1e12:.3g} TFLOP/s"
        return UTILISATION * peak, f"{basis}, besides what each takes to begin"

    def _repr_html_(self) -> str:
        rows, lines = read_table(self.directory), self._summary()[1]
        return points_html(self.points, rows, lines, objective=self.compared_by)


def _apart(items: Sequence[Item | fdl.Config]) -> tuple[fdl.Config | None, list[Item]]:
    """The graph that a sweep begins with, if any, and the rest."""
    said = [item for item in items if not isinstance(item, fdl.Config)]
    if len(said) == len(items):
        return None, said
    if not isinstance(items[0], fdl.Config) or len(said) < len(items) - 1:
        raise ConfigError("a graph is where a sweep begins: give one, before all directives.")
    return items[0], said


def default_name(items: Sequence[Item]) -> str:
    """The directory of a sweep in `runs`: the same for the same axes, whatever their values.

    So the same command goes on where it was stopped, and one with more values, or one that repeats
    the same runs, adds to it.
    """
    items = [item for item in items if isinstance(item, str) or not item.is_repeat]
    fixed = [item for item in items if isinstance(item, str)]
    names = [axis_names(item) if isinstance(item, Axis) else [item] for item in items]
    said = [one for pieces in names for one in pieces]
    begins = fixed[:1] if fixed and split_directive(fixed[0])[0].startswith("config") else []
    digest = hashlib.sha256(repr(said).encode()).hexdigest()[:8]
    return f"sweep-{name_of_base(begins)}-{digest}"
