"""Bisection between two runs."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import fiddle as fdl
from rich.console import Console, Group, RenderableType
from rich.text import Text

from fidgpt.compose.catalogue import Catalogue, own_catalogue
from fidgpt.compose.directives import compose
from fidgpt.compose.runs import load_run
from fidgpt.graph import ConfigError, fingerprint
from fidgpt.graph.reproduce import repro
from fidgpt.model import StartError
from fidgpt.sweep.bisection_pieces import (
    Bounds,
    Culprits,
    Difference,
    Pieces,
    Verdict,
    bounds_of,
    minimal,
)
from fidgpt.sweep.objective import (
    objective_of,
    refuse_unreportable,
    refuse_unreported_by,
    reported_by,
)
from fidgpt.sweep.points import DryRuns, Point
from fidgpt.sweep.progress import Screen
from fidgpt.sweep.results import ResultsTable
from fidgpt.sweep.runners.attempt import Job, Runner, jobs_of

# Trains points and reads their values: nan of one that diverged, None where there is none.
Measure = Callable[[Sequence[Point]], Sequence[float | None]]


@dataclass(frozen=True)
class Probe:
    """One set of differences that is tried.

    Attributes:
      pieces: the differences.
      point: how it is trained; None where it cannot be.
      why: what is wrong with it, where something is.
    """

    pieces: Pieces
    point: Point | None
    why: str = ""


class Probes:
    """Makes points of sets of differences, and measures them.

    Args:
      difference: between the two ends.
      begins: the directive that makes the good end.
      ends: directives that every point ends with.
      catalogue: what has a name.
      patches: the directory of the patch files.
      measure: trains points and reads their values.
    """

    def __init__(
        self,
        difference: Difference,
        *,
        begins: str,
        ends: Sequence[str],
        catalogue: Catalogue,
        patches: Path,
        measure: Measure,
    ) -> None:
        self.known: dict[str, float | None] = {}
        self._difference = difference
        self._begins = begins
        self._ends = list(ends)
        self._catalogue = catalogue
        self._patches = patches
        self._measure = measure
        self._dry_runs = DryRuns()
        self._made: dict[Pieces, Probe] = {}

    def probe(self, pieces: Pieces) -> Probe:
        """How a set of differences is tried."""
        if pieces not in self._made:
            self._made[pieces] = self._new(pieces)
        return self._made[pieces]

    def _new(self, pieces: Pieces) -> Probe:
        try:
            identity, cost, _ = self._dry_runs.of(self.graph(pieces))
        except (ConfigError, StartError) as error:
            return Probe(pieces, None, str(error))
        directives = self.directives(pieces)
        count = len(pieces)
        name = f"{count} difference{'' if count == 1 else 's'} ({identity[:6]})"
        values = {"differences": ", ".join(pieces)}
        return Probe(pieces, Point(directives, directives[1:], identity, name, cost, values))

    def graph(self, pieces: Pieces) -> fdl.Config:
        """The config in which some differences are made, and nothing else.

        Raises:
          ConfigError: they cannot be.
        """
        return compose(self._ends, self._catalogue, base=self._difference.applied(pieces))

    def directives(self, pieces: Pieces) -> tuple[str, ...]:
        """What makes the config of some differences; writes the patch file that it names."""
        if not pieces:
            return (self._begins, *self._ends)
        path = self._difference.write(pieces, self._patches)
        return (self._begins, f"patch:{path}", *self._ends)

    def values(self, probes: Sequence[Probe]) -> list[float | None]:
        """What each probe came to; those that are not known yet are trained."""
        points = [one.point for one in probes if one.point is not None]
        todo = {one.fingerprint: one for one in points if one.fingerprint not in self.known}
        if todo:
            values = self._measure(list(todo.values()))
            self.known |= dict(zip(todo, values, strict=True))
        return [one.point and self.known[one.point.fingerprint] for one in probes]


LOG = "bisect.jsonl"
_SHOWN = 4  # places in a line


class ProbeLog:
    """Writes `bisect.jsonl` anew, a row a probe, and tells each of them.

    Args:
      directory: where the file lies.
      objective: the name of what is measured.
      num_pieces: how many differences there are in all.
      say: writes a line for a person.
    """

    def __init__(
        self, directory: Path, *, objective: str, num_pieces: int, say: Callable[[str], None]
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / LOG
        self._path.write_text("", encoding="utf-8")
        self._objective = objective
        self._num_pieces = num_pieces
        self._say = say
        self._count = 0

    def add(self, probe: Probe, value: float | None, verdict: Verdict) -> None:
        """Takes down what came of a probe."""
        self._count += 1
        why = probe.why or ("" if value is not None else f"it came to no {self._objective}")
        row = {
            "probe": self._count,
            "differences": list(probe.pieces),
            "verdict": verdict.value,
            "value": None if value is None or math.isnan(value) else value,
            "why": "it diverged" if value is not None and math.isnan(value) else why,
            "fingerprint": probe.point and probe.point.fingerprint,
            "directives": list(probe.point.directives) if probe.point else None,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        came_to = row["why"] or f"{self._objective} {value:.4f}"
        self._say(
            f"probe {self._count}: {len(probe.pieces)} of {self._num_pieces} differences "
            f"({_places(probe.pieces)}): {came_to.splitlines()[0]}: {verdict.value}"
        )


def _places(pieces: tuple[str, ...]) -> str:
    shown = ", ".join(one or "the root" for one in pieces[:_SHOWN]) or "none"
    return shown + (", ..." if len(pieces) > _SHOWN else "")


class Bisection:
    """Finds the smallest set of differences that moves an objective past a threshold.

    Args:
      good: the directory of the run that is good.
      bad: of the one that is not.
      objective: what is compared, such as `validation/loss` or `max:tasks/arc_easy/acc`; which way
        is better matters where the bad run diverged.
      threshold: from which value on a run is bad; half-way between the two unless said.
      steps: trains each probe, and both ends, this long; as long as its config says unless said,
        and then ends that are done are not trained again.
      directory: where the probes lie; `runs/bisect-...` of these ends unless said.
      allowed: packages of the user's own whose callables a config may name.

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
        self.good, self.bad = Path(good), Path(bad)
        self.objective = objective_of(objective)
        self.threshold = threshold
        self.allowed = tuple(allowed)
        self._ends = [] if steps is None else [f"set:num_steps={steps}"]
        graphs = [load_run(path, allowed=self.allowed) for path in (self.good, self.bad)]
        for run, graph in zip((self.good, self.bad), graphs, strict=True):
            refuse_unreportable(self.objective, graph)
            refuse_unreported_by(self.objective, run)
        self.difference = Difference(*graphs, allowed=self.allowed)
        self.directory = Path(directory or Path("runs") / self._default_name())

    def _default_name(self) -> str:
        graphs = (self.difference.good, self.difference.bad)
        digest = hashlib.sha256(repr([*map(fingerprint, graphs), self._ends]).encode())
        return f"bisect-{self.good.name}-{self.bad.name}-{digest.hexdigest()[:8]}"

    def find(
        self, measure: Measure, *, jobs: int = 1, say: Callable[[str], None] = print
    ) -> Culprits:
        """Tries sets of differences until none of what is left can be left out.

        Args:
          measure: trains points and reads their values.
          jobs: how many are measured at a time.
          say: writes a line for a person.

        Raises:
          ConfigError: the ends cannot be compared, or the differences do not explain it.
        """
        return _Search(self, measure, jobs=jobs, say=say).culprits()

    def __rich__(self) -> RenderableType:
        count = len(self.difference.pieces)
        lines = self.difference.told(self.difference.pieces)
        return Group(
            Text(f"{count} differences, to be tried in {self.directory}:"), *map(Text, lines)
        )

    @cached_property
    def begins(self) -> str:
        """The directive that makes the good config."""
        return f"config_file:{self.good / 'config.json'}"

    def recorded(self, run: Path, probe: Probe) -> float | None:
        """The value of an end that was trained to its last step; None where it must be trained."""
        numbers = reported_by(run)
        is_whole = probe.point and numbers.get("step") == probe.point.cost.num_steps
        return numbers.get(self.objective.name) if is_whole and not self._ends else None

    def probes(self, measure: Measure) -> Probes:
        """What makes points of sets of differences."""
        return Probes(
            self.difference,
            begins=self.begins,
            ends=self._ends,
            catalogue=own_catalogue(self.allowed),
            patches=self.directory / "patches",
            measure=measure,
        )


class _Search:
    """One way through the sets of differences."""

    def __init__(
        self, bisection: Bisection, measure: Measure, *, jobs: int, say: Callable[[str], None]
    ) -> None:
        self._of = bisection
        self._every = bisection.difference.pieces
        self._probes = bisection.probes(measure)
        self._jobs = jobs
        self._say = say
        self._log = ProbeLog(
            bisection.directory,
            objective=bisection.objective.name,
            num_pieces=len(self._every),
            say=say,
        )
        self._verdicts: dict[Pieces, Verdict] = {}

    def culprits(self) -> Culprits:
        self._bounds = self._measured_ends()
        groups = self._of.difference.groups()
        self._say(
            f"{len(self._every)} differences, {len(groups)} of which can be made alone or in groups"
        )
        found = self._flat(minimal(groups, self._first_bad_groups))
        found = minimal(found, self._first_bad)  # what a group needs is not always to blame
        if found == self._every:
            self._confirm()
        return self._result(found)

    def _measured_ends(self) -> Bounds:
        ends = self._probes.probe(()), self._probes.probe(self._every)
        for probe, run in zip(ends, (self._of.good, self._of.bad), strict=True):
            if probe.point is None:
                raise ConfigError(f"{run} cannot be run: {probe.why}")
            recorded = self._of.recorded(run, probe)
            if recorded is not None:
                self._probes.known[probe.point.fingerprint] = recorded
        values = self._probes.values(ends)
        bounds = bounds_of(self._of.objective, values[0], values[1], self._of.threshold)
        for probe, value in zip(ends, values, strict=True):
            self._log.add(probe, value, bounds.verdict(value))
        return bounds

    def _first_bad_groups(self, sets: list[tuple[Pieces, ...]]) -> tuple[Pieces, ...] | None:
        flat = {self._flat(groups): groups for groups in sets}
        found = self._first_bad(list(flat))
        return None if found is None else flat[found]

    def _flat(self, groups: Sequence[Pieces]) -> Pieces:
        chosen = {piece for group in groups for piece in group}
        return tuple(piece for piece in self._every if piece in chosen)

    def _first_bad(self, sets: list[Pieces]) -> Pieces | None:
        for begin in range(0, len(sets), self._jobs):
            batch = sets[begin : begin + self._jobs]
            self._try([one for one in batch if one not in self._verdicts])
            for one in batch:
                if self._verdicts[one] is Verdict.BAD:
                    return one
        return None

    def _try(self, sets: list[Pieces]) -> None:
        probes = [self._probes.probe(one) for one in sets]
        for probe, value in zip(probes, self._probes.values(probes), strict=True):
            self._verdicts[probe.pieces] = verdict = self._bounds.verdict(value)
            self._log.add(probe, value, verdict)

    def _confirm(self) -> None:
        """Trains the bad config anew, of which no part alone was bad.

        Raises:
          ConfigError: it is good now, so that no difference of the configs is to blame.
        """
        probe = self._probes.probe(self._every)
        assert probe.point is not None  # or its value had not been measured
        if self._of.recorded(self._of.bad, probe) is None:
            return
        del self._probes.known[probe.point.fingerprint]
        self._try([self._every])
        if self._verdicts[self._every] is not Verdict.BAD:
            (value,) = self._probes.values([probe])
            now = "came to no value" if value is None else f"is {value:.6g}"
            raise ConfigError(
                f"no difference of the configs did it: {self._of.objective.name} of the bad config "
                f"was {self._bounds.bad:.6g} in {self._of.bad}, and {now} when it is trained "
                "again. Compare the environment.json of the two runs: code, data and machine."
            )

    def _result(self, found: Pieces) -> Culprits:
        probe = self._probes.probe(found)
        (value,) = self._probes.values([probe])
        rest = self._probes.probe(tuple(one for one in self._every if one not in found))
        return Culprits(
            self._of.objective.name,
            found,
            self._of.difference.told(found),
            len(self._every),
            math.nan if value is None else value,
            self._bounds,
            self._said(found),
            self._said(rest.pieces) if rest.point and rest.pieces else None,
            self._of.allowed,
        )

    def _said(self, pieces: Pieces) -> tuple[str, ...]:
        """Directives that make some differences: readable ones if they do, else a patch file."""
        catalogue = own_catalogue(self._of.allowed)
        begins, good = self._of.begins, self._of.difference.good
        wanted = self._probes.graph(pieces)
        try:
            found = repro(
                wanted,
                {begins: good},
                compose=lambda said: compose(list(said)[1:], catalogue, base=good),
            )
        except ConfigError:
            return self._probes.directives(pieces)
        return tuple(found.directives) if found.is_same else self._probes.directives(pieces)


class Stopped(Exception):
    """A signal asked for the end before all was done."""


class Measuring:
    """Trains points that are not done yet, each in a run directory of its own.

    Args:
      directory: where those lie, with the table of all.
      objective: the number that is read.
      runner: what runs the points.
      flags: what every command is told.
      console: where to tell of it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        objective: str,
        runner: Runner,
        flags: Sequence[str],
        console: Console,
    ) -> None:
        self._directory = directory
        self._objective = objective_of(objective)
        self._runner = runner
        self._flags = tuple(flags)
        self._console = console

    def __call__(self, points: Sequence[Point]) -> list[float | None]:
        """What each point came to: nan where it diverged, None where it has no value.

        Raises:
          Stopped: a signal asked for the end.
        """
        jobs = jobs_of(points, self._directory, self._flags)
        self._directory.mkdir(parents=True, exist_ok=True)
        book = ResultsTable(self._directory, jobs)
        todo = [job for job in jobs if book.row(job)["status"] not in ("finished", "diverged")]
        if todo:
            with Screen(book, console=self._console, objective=self._objective) as screen:
                if not self._runner.run(todo, screen):
                    raise Stopped
        return [self._value(job, book) for job in jobs]

    def _value(self, job: Job, book: ResultsTable) -> float | None:
        if book.row(job)["status"] == "diverged":
            return math.nan
        return reported_by(job.directory).get(self._objective.name) if job.is_done else None
