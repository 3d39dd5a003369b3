"""Bisection between two runs: which differences of their configs make a metric worse."""

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import fiddle as fdl
from rich.console import Console, Group, RenderableType
from rich.text import Text

from fidgpt.compose import catalogue, composition, reproduction
from fidgpt.graph import ConfigError, apply_patch, diff, diff_text, fingerprint
from fidgpt.graph.difference.patches import patch_of
from fidgpt.model import InitError
from fidgpt.runs.directories import load_run
from fidgpt.sweep import objective as objectives
from fidgpt.sweep import results
from fidgpt.sweep.points import DryRuns, Point
from fidgpt.sweep.runners.jobs import Runner, jobs_of

T = TypeVar("T")
FirstBad = Callable[[list[tuple[T, ...]]], tuple[T, ...] | None]
Pieces = tuple[str, ...]  # paths in the good graph at which something is changed
# Trains points and returns their values: NaN for one that diverged, None for one without a value.
Measure = Callable[[Sequence[Point]], Sequence[float | None]]
Verdict = Literal["bad", "good", "unresolved"]
_SHOWN = 4  # paths in a line


class Stopped(Exception):
    """A signal stopped the bisection before it finished."""


def _without(pieces: Sequence[T], others: Sequence[T]) -> tuple[T, ...]:
    return tuple(piece for piece in pieces if piece not in others)


def minimize(pieces: Sequence[T], first_bad: FirstBad[T]) -> tuple[T, ...]:
    """Return a set of pieces, none of which can be left out.

    This is ddmin (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input",
    2002): smaller and smaller parts are tried alone, then all but each of them. One cause among
    `n` is found in about `2 log2 n` tries; the worst case is about `n**2`. Sets that cannot be
    tried count as good.

    Args:
      pieces: all pieces, which together are bad.
      first_bad: tries sets in the given order; returns the first bad one, or None.
    """
    left, count = tuple(pieces), 2
    while len(left) > 1:
        ends = [round(i * len(left) / count) for i in range(count + 1)]
        parts = [left[begin:end] for begin, end in itertools.pairwise(ends) if begin < end]
        rests = [_without(left, part) for part in parts]
        if smaller := first_bad(parts):
            left, count = smaller, 2
        elif count > 2 and (smaller := first_bad(rests)):
            left, count = smaller, max(2, count - 1)
        elif count < len(left):
            count = min(2 * count, len(left))
        else:
            break
    return left


class Bounds:
    """The values of both ends, and the threshold between good and bad values.

    Args:
      objective: the metric to compare.
      good: value of the good end; NaN if it diverged, None without one.
      bad: value of the bad end, likewise.
      threshold: values from here on, towards the bad end, are bad; defaults to the middle between
        both. If the bad end diverged, None calls only divergence bad.

    Raises:
      ConfigError: an end has no value, the ends are in the wrong order, or the threshold does not
        lie between them.
    """

    def __init__(
        self,
        objective: objectives.Objective,
        good: float | None,
        bad: float | None,
        threshold: float | None = None,
    ) -> None:
        name = objective.name
        if good is None or bad is None:
            raise ConfigError(f"one of the two runs has no {name}: there is nothing to compare.")
        if good == bad:
            raise ConfigError(f"both runs have the same {name}, {good:.6g}: neither is bad.")
        if math.isnan(good) or (objective.is_larger_better and good < bad):
            raise ConfigError(
                f"the good run's {name}, {good:.6g}, is worse than the bad one's, {bad:.6g}: "
                "swap the two."
            )
        self.good, self.bad, self.threshold = good, bad, threshold
        self._sign = -1 if objective.is_larger_better or bad < good else 1
        if threshold is None and not math.isnan(bad):
            self.threshold = (good + bad) / 2
        if self.verdict(good) == "bad" or self.verdict(bad) == "good":
            raise ConfigError(
                f"--threshold={threshold} does not lie between the good run's {name}, "
                f"{good:.6g}, and the bad one's, {bad:.6g}."
            )

    def verdict(self, value: float | None) -> Verdict:
        """Judge a value: NaN stands for divergence, None for no value."""
        if value is None:
            return "unresolved"
        is_past = self.threshold is not None and self._sign * (value - self.threshold) >= 0
        return "bad" if is_past or math.isnan(value) else "good"


@dataclass(frozen=True)
class Findings:
    """The smallest set of differences that makes a good run bad.

    Attributes:
      pieces: paths of the differences.
      directives: make the good config with these differences and no others.
      cure: make the bad config without these differences; None if that config is invalid.
      text: the differences and metrics, with the commands of both.
    """

    pieces: Pieces
    directives: tuple[str, ...]
    cure: tuple[str, ...] | None
    text: str

    def __rich__(self) -> RenderableType:
        return Text(self.text)


class Bisection:
    """Finds the smallest set of differences that moves a metric past a threshold.

    Args:
      good: directory of the good run.
      bad: directory of the bad run.
      objective: the metric to compare, such as `validation/loss` or `max:tasks/arc_easy/acc`; the
        direction matters if the bad run diverged.
      threshold: the value from which on a run is bad; defaults to the middle between the two.
      steps: trains each probe, and both ends, for so many steps; None keeps the steps of the
        config, and then finished ends are not trained again.
      directory: where the probes are written; defaults to `runs/bisect-...`.
      allowed: packages of the user's own whose callables a config may name.

    Attributes:
      pieces: paths of all differences.

    Raises:
      RunError: there is no such run.
      ConfigError: the configs do not differ, or a run does not report the objective.
    """

    def __init__(
        self,
        good: str | Path,
        bad: str | Path,
        *,
        objective: str,
        threshold: float | None = None,
        steps: int | None = None,
        directory: str | Path | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        self.good, self.bad = Path(good).expanduser(), Path(bad).expanduser()
        self.objective = objectives.objective_of(objective)
        self.threshold = threshold
        self.allowed = tuple(allowed)
        self._ends = [] if steps is None else [f"set:num_steps={steps}"]
        graphs = [load_run(path, allowed=self.allowed) for path in (self.good, self.bad)]
        for cfg in graphs:
            objectives.refuse_unreportable(self.objective, cfg)
        self._graphs = graphs
        self._patch = patch_of(*graphs)
        self.pieces: Pieces = tuple(self._patch.changes)
        if not self.pieces:
            raise ConfigError(
                "the two runs have the same config: the difference is in the "
                "code, the data or the machine; compare their environment.json."
            )
        digest = hashlib.sha256(repr([*map(fingerprint, graphs), self._ends]).encode())
        name = f"bisect-{self.good.name}-{self.bad.name}-{digest.hexdigest()[:8]}"
        self.directory = Path(directory or Path("runs") / name).expanduser()
        self._catalogue = catalogue.own_catalogue(self.allowed)
        self._begin = f"config_file:{self.good / 'config.json'}"
        self._dry_runs = DryRuns(self._catalogue)
        self._point = functools.cache(self._new_point)
        self._values: dict[str, float | None] = {}  # by fingerprint
        self._verdicts: dict[Pieces, Verdict] = {}

    def train(
        self, points: Sequence[Point], runner: Runner, console: Console
    ) -> list[float | None]:
        """Train the points that are not finished yet, and return the value of each.

        Raises:
          Stopped: a signal stopped the runs.
        """
        jobs = jobs_of(points, self.directory, reproduction.allow_flags(self.allowed))
        table = results.ResultsTable(self.directory, jobs)
        todo = [job for job in jobs if table.row(job)["status"] not in ("finished", "diverged")]
        if todo:
            with results.Screen(table, console=console, objective=self.objective) as screen:
                if not runner.run(todo, screen):
                    raise Stopped
        return [
            math.nan
            if table.row(job)["status"] == "diverged"
            else job.result().get(self.objective.name)
            for job in jobs
        ]

    def run(self, runner: Runner, *, jobs: int = 1, console: Console) -> Findings:
        """Find the differences by training probes.

        Raises:
          ConfigError: as `find` does.
          Stopped: a signal stopped the runs.
        """
        return self.find(
            lambda points: self.train(points, runner, console),
            jobs=jobs,
            log=lambda line: console.print(line, soft_wrap=True, markup=False, emoji=False),
        )

    def find(
        self, measure: Measure, *, jobs: int = 1, log: Callable[[str], None] = print
    ) -> Findings:
        """Try sets of differences until none of those left can be left out.

        Args:
          measure: trains points and returns their values.
          jobs: how many points are measured at a time.
          log: writes a line for the user.

        Raises:
          ConfigError: the ends cannot be compared, or the differences do not explain the metric.
        """
        self._measure, self._log, self._numbers = measure, log, itertools.count(1)
        self._values.clear()
        self._verdicts.clear()
        results.claim(self.directory)
        ends = [(), self.pieces]
        for pieces, run in zip(ends, (self.good, self.bad), strict=True):
            point = self._point(pieces)
            if isinstance(point, str):
                raise ConfigError(f"{run} cannot be run: {point}")
            if (value := self._recorded(run, point)) is not None:
                self._values[point.fingerprint] = value
        good, bad = self._measured(ends)
        self._bounds = Bounds(self.objective, good, bad, self.threshold)
        self._try(ends)

        def first_bad(sets: list[Pieces]) -> Pieces | None:
            for begin in range(0, len(sets), jobs):
                batch = sets[begin : begin + jobs]
                self._try([point for point in batch if point not in self._verdicts])
                if bad := [point for point in batch if self._verdicts[point] == "bad"]:
                    return bad[0]
            return None

        culprits = minimize(self.pieces, first_bad)
        if culprits == self.pieces:
            self._confirm()
        rest = _without(self.pieces, culprits)
        has_cure = bool(rest) and isinstance(self._point(rest), Point)
        directives, cure = self._directives(culprits), self._directives(rest) if has_cure else None
        return Findings(culprits, directives, cure, self._text(culprits, directives, cure))

    def __rich__(self) -> RenderableType:
        head = f"{len(self.pieces)} differences, to be tried in {self.directory}:"
        return Group(Text(head), *map(Text, self._lines(self.pieces)))

    def _patch_text(self, pieces: Pieces) -> str:
        changes = {path: self._patch.changes[path] for path in pieces}
        return replace(self._patch, changes=changes).text()

    def changed(self, pieces: Pieces) -> fdl.Config:
        """Return the good graph with some differences applied.

        Raises:
          ConfigError: they cannot be applied without others.
        """
        if len(pieces) == len(self.pieces):
            return self._graphs[1]
        return apply_patch(self._graphs[0], self._patch_text(pieces), allowed=self.allowed)

    def _composed(self, pieces: Pieces) -> fdl.Config:
        """Return the config that is trained to try some differences; raises as `changed`."""
        return composition.compose(self._ends, self._catalogue, base=self.changed(pieces)).config

    def _lines(self, pieces: Pieces) -> list[str]:
        """Describe some differences, a line each."""
        return diff_text(diff(self._graphs[0], self.changed(pieces))).splitlines()

    def _directives(self, pieces: Pieces) -> tuple[str, ...]:
        """Return the directives of a config, one of which names a patch file written here."""
        if not pieces:
            return (self._begin, *self._ends)
        text = self._patch_text(pieces)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        path = self.directory / "patches" / f"{digest}.patch"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return (self._begin, f"patch:{path}", *self._ends)

    def _recorded(self, run: Path, point: Point) -> float | None:
        """Return the value of an end that was trained to its last step; None to train it."""
        numbers = objectives.reported_by(run)
        is_whole = not self._ends and numbers.get("step") == point.cost.num_steps
        return numbers.get(self.objective.name) if is_whole else None

    def _text(
        self, culprits: Pieces, directives: tuple[str, ...], cure: tuple[str, ...] | None
    ) -> str:
        bounds, (value,) = self._bounds, self._measured([culprits])
        numbers = [
            "diverged" if number is None or math.isnan(number) else f"{number:.4f}"
            for number in (bounds.good, value, bounds.bad, bounds.threshold)
        ]
        verb = "differences makes" if len(culprits) == 1 else "differences, only together, make"
        limit = "" if bounds.threshold is None else f", the threshold {numbers[3]}"
        lines = [
            f"{len(culprits)} of {len(self.pieces)} {verb} {self.objective.name} bad: "
            f"{numbers[0]} -> {numbers[1]} (the bad run {numbers[2]}{limit})",
            *(f"  {line}" for line in self._lines(culprits)),
        ]
        commands = {"the good run with only these changes": directives}
        commands |= {"the bad run without these changes": cure} if cure else {}
        for what, given in commands.items():
            lines += [f"{what}:", f"  {reproduction.train_command(given, allowed=self.allowed)}"]
        return "\n".join(lines)

    def _new_point(self, pieces: Pieces) -> Point | str:
        """Return the point that tries some differences, or their error."""
        try:
            checked, cost = self._dry_runs.of(self._composed(pieces))
        except (ConfigError, InitError) as error:
            return str(error)
        directives = self._directives(pieces)
        name = f"{len(pieces)} difference{'s' * (len(pieces) != 1)} ({checked.fingerprint[:6]})"
        values = {"differences": ", ".join(pieces)}
        return Point(directives, checked.fingerprint, name, cost, values)

    def _measured(self, sets: Sequence[Pieces]) -> list[float | None]:
        """Return the value of each set of differences, training those not known yet."""
        points = [self._point(directives) for directives in sets]
        valid = {point.fingerprint: point for point in points if isinstance(point, Point)}
        if todo := [point for key, point in valid.items() if key not in self._values]:
            values = zip(todo, self._measure(todo), strict=True)
            self._values |= {point.fingerprint: value for point, value in values}
        return [None if isinstance(p, str) else self._values[p.fingerprint] for p in points]

    def _try(self, sets: list[Pieces]) -> None:
        """Judge sets of differences, each logged as a line."""
        name = self.objective.name
        for pieces, value in zip(sets, self._measured(sets), strict=True):
            point, number = self._point(pieces), next(self._numbers)
            self._verdicts[pieces] = verdict = self._bounds.verdict(value)
            outcome = f"it has no {name}" if value is None else f"{name} {value:.4f}"
            if isinstance(point, str):
                outcome = point.splitlines()[0]
            shown = ", ".join(pieces[:_SHOWN]) or "none"
            shown += ", ..." if len(pieces) > _SHOWN else ""
            self._log(
                f"probe {number}: {len(pieces)} of {len(self.pieces)} differences ({shown}): "
                f"{outcome}: {verdict}"
            )

    def _confirm(self) -> None:
        """Train the bad config once more if no part of its differences was bad by itself.

        Raises:
          ConfigError: it is good now, so no difference of the configs is the cause.
        """
        point = self._point(self.pieces)
        assert isinstance(point, Point)  # or its value had not been measured
        if self._recorded(self.bad, point) is None:
            return
        del self._values[point.fingerprint]
        self._try([self.pieces])
        if self._verdicts[self.pieces] != "bad":
            raise ConfigError(
                f"no difference of the configs is the cause: {self.objective.name} of the bad "
                f"config was {self._bounds.bad:.6g} in {self.bad}, and is good when it is trained "
                "again. Compare the environment.json of the two runs: code, data and machine."
            )
