"""A sweep: many configs as one set, composed, shown with what they take, run and read back."""

import bisect
import hashlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import fiddle as fdl
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fidgpt import cost
from fidgpt.compose import reproduction
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.graph import ConfigError, dump, fingerprint
from fidgpt.plan import Planner, cluster_named
from fidgpt.runs.building import build_trainer
from fidgpt.runs.directories import name_of_base
from fidgpt.sweep import results
from fidgpt.sweep.axes import Axis, Item, with_files_read
from fidgpt.sweep.objective import Objective, objective_of, read_objective, refuse_unreportable
from fidgpt.sweep.points import Plan, Point, plan
from fidgpt.sweep.results import Results, ResultsTable, new_row, read_table
from fidgpt.sweep.runners.jobs import Job, LocalRunner, Runner, jobs_of
from fidgpt.train.device import VARIABLE, cluster_at_hand, machine_named
from fidgpt.train.estimates.summary_text import counted, duration, magnitude

__all__ = ["Sweep"]

_FLOPS = ["", "k", "M", "G", "T", "P", "E", "Z"]
MOST_PLANNED = 32  # kinds of points; a plan takes a tenth of a second or more


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long points take on a machine.

    Attributes:
      basis: where the times come from, in words.
      steps: FLOPs and seconds of the known steps, in order of FLOPs.
      kinds: seconds of a step by the kind of a point. A point of another kind computes at the
        FLOP/s of the known step that is the next larger one.
    """

    basis: str
    steps: Sequence[tuple[float, float]]
    kinds: dict[object, float]

    def seconds(self, point: Point) -> float:
        """Return the time of a point."""
        number, each = point.cost.num_steps, point.cost.flops / max(1, point.cost.num_steps)
        if point.cost.kind in self.kinds:
            return number * self.kinds[point.cost.kind]
        at = bisect.bisect_left(self.steps, (each, 0.0))
        flops, seconds = self.steps[min(at, len(self.steps) - 1)]
        return number * each * seconds / flops


def planned_pace(points: Sequence[Point], machine: str | None, *, allowed: tuple[str, ...]) -> Pace:
    """Return the pace of points by the plan of one of each kind.

    Args:
      points: one or more.
      machine: its name; None for the one at hand.
      allowed: packages of the user's own whose callables a config may name.

    Raises:
      ValueError: the machine is unknown, or cannot run a point.
    """
    first: dict[object, Point] = {}
    for point in points:
        first.setdefault(point.cost.kind, point)
    sizes = {kind: one.cost.flops / max(1, one.cost.num_steps) for kind, one in first.items()}
    every = sorted(first, key=sizes.__getitem__)
    number = min(len(every), MOST_PLANNED)
    chosen = [every[i * (len(every) - 1) // max(1, number - 1)] for i in range(number)]
    kinds = {kind: _step_seconds(first[kind], machine, allowed) for kind in chosen}
    basis = f"as planned for {machine}" if machine else "as planned for this machine"
    if len(chosen) < len(every):
        basis += f" for {number} of {len(every):,} kinds of points, the others as the next of them"
    basis += "" if machine else ", besides the time to start each"
    return Pace(basis=basis, steps=[(sizes[kind], kinds[kind]) for kind in chosen], kinds=kinds)


def _step_seconds(point: Point, machine: str | None, allowed: tuple[str, ...]) -> float:
    composition = compose(point.directives, own_catalogue(allowed))
    trainer = build_trainer(composition.resolved, composition.catalogue, will_run=False)
    dtype, parallel = trainer.precision.dtype, trainer.parallel
    cluster = machine_named(machine, dtype) if machine else cluster_at_hand(parallel, dtype)
    planner = Planner(trainer, cluster)
    setting = planner.setting(parallel.layout(cluster.size))
    try:
        days = planner.plan(setting).days
    except cost.NEEDS_NUMBERS:
        days = planner.plan_of_weights(setting).days
    return 86400 * days / max(1, trainer.num_steps)


class Sweep:
    """A set of points: directives, with axes in their places among them.

    Nothing runs before `run` is called, and a point that is finished in the directory is not run
    again.

    Args:
      items: directives such as `config:base`, and axes, which multiply. A graph may be the first
        of them: it is written into the directory, and `config_file:` begins with it.
      directory: of the runs and their results; defaults to `runs/sweep-...` of these axes.
      objective: what points are compared by, such as `loss`, or `max:tasks/arc_easy/acc` if larger
        is better; defaults to the held-out loss.
      allowed: packages of the user's own whose callables a config may name.
      price: of a device for an hour; None if it is not known.

    Raises:
      ConfigError: a graph is not the first item, the objective lacks a direction, or a file of
        overrides is wrong.
    """

    def __init__(
        self,
        *items: Item | fdl.Config,
        directory: str | Path | None = None,
        objective: str | None = None,
        allowed: Sequence[str] = (),
        price: float | None = None,
    ) -> None:
        self.allowed = tuple(allowed)
        self.price = price
        self.objective = None if objective is None else objective_of(objective)
        graphs = [item for item in items if isinstance(item, fdl.Config)]
        rest = [*with_files_read(item for item in items if not isinstance(item, fdl.Config))]
        if graphs[1:] or (graphs and items[0] is not graphs[0]):
            raise ConfigError("a graph must be the first item: give one, before all directives.")
        self.items: list[Item] = [*map(fingerprint, graphs), *rest]
        self.directory = Path(directory or Path("runs") / default_name(self.items)).expanduser()
        if graphs:
            results.claim(self.directory)
            path = self.directory / f"base-{fingerprint(graphs[0])[:12]}.json"
            path.write_text(dump(graphs[0]), encoding="utf-8")
            self.items = [f"config_file:{path}", *rest]

    @cached_property
    def plan(self) -> Plan:
        """The points, all composed and checked.

        Raises:
          ConfigErrors: some are wrong, and the first of those are named.
          ConfigError: no run reports the objective.
        """
        points = plan(self.items, allowed=self.allowed)
        if self.objective is not None:
            cfg = compose(points.points[0].directives, own_catalogue(self.allowed)).config
            refuse_unreportable(self.objective, cfg)
        return points

    @property
    def compared_by(self) -> Objective | None:
        """The objective as given or recorded; None for the held-out loss."""
        return self.objective or read_objective(self.directory)

    @property
    def points(self) -> list[Point]:
        """The points, each fingerprint once.

        Raises:
          ConfigErrors: as `plan` does.
        """
        return self.plan.points

    @property
    def jobs(self) -> list[Job]:
        """The points as command lines and directories, for any runner."""
        return jobs_of(self.points, self.directory, reproduction.allow_flags(self.allowed))

    def run(
        self,
        *,
        jobs: int = 1,
        retries: int = 0,
        runner: Runner | None = None,
        console: Console | None = None,
    ) -> Results:
        """Train every point that is not finished yet; one that fails does not stop the others.

        Args:
          jobs: points at a time.
          retries: how often a point that failed is retried.
          runner: what runs the points; defaults to processes on this machine.
          console: where to write; defaults to standard output.

        Returns:
          The results of every point, including those that were stopped by a signal.

        Raises:
          ConfigErrors: some points are wrong; none was started then.
        """
        every, by = self.jobs, self.compared_by
        table = ResultsTable(self.directory, every)
        with results.Screen(table, objective=by, console=console) as screen:
            todo = [job for job in every if screen.table.row(job)["status"] != "finished"]
            if len(todo) < len(every):
                screen.log(f"{len(every) - len(todo)} of {len(every)} points are done already.")
            (runner or LocalRunner(jobs=jobs, retries=retries)).run(todo, screen)
        return Results(list(screen.table), self.compared_by)

    def results(self) -> Results:
        """Return the results of the points so far, read from the directory."""
        return results.read_results(self.directory)

    def __rich__(self) -> RenderableType:
        pace = self.pace()
        done = {job.point.fingerprint for job in self.jobs if job.is_done}
        lines = [
            *summary_lines(self.plan, pace=pace, done=done),
            f"in {self.directory}",
        ]
        name = os.environ.get(VARIABLE)
        size = cluster_named(name).size if name and not name.startswith("cpu") else 1
        price = self.price and self.price * size / 3600
        table = points_table(self.plan, pace=pace, price=price)
        return Group(table, *map(Text, lines))

    def within(self, budget: float, *, is_time: bool, drops: bool) -> list[Point]:
        """Return the points beyond a budget of the whole sweep, the most costly first; drop them.

        Args:
          budget: FLOPs, or seconds.
          is_time: whether it is seconds.
          drops: whether to drop them; otherwise they are refused.

        Raises:
          ConfigError: they are refused, or cannot be planned.
        """
        seconds = self.pace().seconds if is_time else None
        costs = {p.fingerprint: seconds(p) if seconds else p.cost.flops for p in self.points}
        beyond: list[Point] = []
        left = sorted(self.points, key=lambda point: costs[point.fingerprint])
        while left and sum(costs[point.fingerprint] for point in left) > budget:
            beyond.append(left.pop())
        names = ", ".join(point.name for point in beyond)
        amounts = sum(costs.values()), budget, min(costs.values(), default=0.0)
        texts = [duration(one) if is_time else f"{one:.3g} FLOPs" for one in amounts]
        if beyond and not left:
            raise ConfigError(
                f"no point is within the budget of {texts[1]}: the least, {beyond[-1].name}, "
                f"takes {texts[2]}."
            )
        if beyond and not drops:
            raise ConfigError(
                f"the points take {texts[0]}, and the budget is {texts[1]}: without "
                f"{names} it would do; --drop leaves them out."
            )
        if beyond:
            self.plan = replace(self.plan, points=left)
        return beyond

    def pace(self) -> Pace:
        """Return the pace of the points that ran here, or as planned.

        Raises:
          ConfigError: the machine is unknown, or cannot run a point.
        """
        rows = [row for row in read_table(self.directory) if row["status"] == "finished"]
        seconds = {row["fingerprint"]: row["seconds"] for row in rows}
        timed = [point for point in self.points if seconds.get(point.fingerprint)]
        if timed:
            total = sum(seconds[point.fingerprint] for point in timed)
            flops = sum(point.cost.flops for point in timed)
            basis = f"as the {len(timed)} that ran so far"
            return Pace(basis=basis, steps=[(float(flops), total)], kinds={})
        try:
            machine = os.environ.get(VARIABLE) or None
            return planned_pace(self.points, machine, allowed=self.allowed)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _repr_html_(self) -> str:
        recorded = {row["fingerprint"]: row for row in read_table(self.directory)}
        rows = [recorded.get(job.point.fingerprint, new_row(job)) for job in self.jobs]
        states = Group(Results(rows, self.compared_by), Text(results.tally(rows, len(rows))))
        return results.as_html(Group(self, states))


def default_name(items: Sequence[Item]) -> str:
    """Return the name of a sweep's directory: the same for the same axes, whatever their values.

    So the same command continues where it was stopped, and one with more values, or one that
    repeats the same runs, adds to it.
    """
    items = [item for item in items if isinstance(item, str) or not item.is_repeat]
    fixed = [item for item in items if isinstance(item, str)]
    names = [item.identity if isinstance(item, Axis) else [item] for item in items]
    digest = hashlib.sha256(repr([piece for name in names for piece in name]).encode()).hexdigest()
    base = name_of_base(fixed[:1])
    return f"sweep-{base}-{digest[:8]}"


def points_table(plan: Plan, *, pace: Pace, price: float | None = None) -> Table:
    """Return the points of a sweep with their size, FLOPs, days, and price if it is known.

    Args:
      plan: the points.
      pace: of the machine.
      price: of a second; None if it is not known.
    """
    rows = [
        (
            *(point.name, point.short, f"{point.cost.parameters:,}"),
            magnitude(point.cost.flops, _FLOPS),
            duration(pace.seconds(point)),
            *([f"{price * pace.seconds(point):,.2f}"] if price else []),
        )
        for point in plan.points
    ]
    numbers = ("parameters", "FLOPs", "about", *(["price"] if price else []))
    return results.table(("point", "fingerprint", *numbers), rows, numbers=numbers)


def summary_lines(plan: Plan, *, pace: Pace, done: Collection[str] = ()) -> list[str]:
    """Return what follows a table of points: their number and time, and what each axis moves.

    Args:
      plan: the points.
      pace: of the machine.
      done: fingerprints of finished points.
    """
    left = [point for point in plan.points if point.fingerprint not in done]
    num_done = len(plan.points) - len(left)
    text = counted(len(plan.points), "point") + (f", {num_done} of them done" if num_done else "")
    if left:
        seconds = sum(map(pace.seconds, left))
        rest = "for the rest, " if num_done else ""
        text += f", about {duration(seconds)} {rest}in sequence, {pace.basis}"
    folded = [f"{plan.num_folded} more are the same runs as some of these"] * bool(plan.num_folded)
    return [text, *folded, *plan.moves]
