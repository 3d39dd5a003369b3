"""Which difference between two runs did it: delta debugging over their configs."""

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from fidgpt.cli.catalogue.catalogue import own_catalogue
from fidgpt.cli.directives.directives import compose
from fidgpt.cli.running.runs import load_run
from fidgpt.graph import ConfigError, fingerprint
from fidgpt.graph.spelling.repro import repro
from fidgpt.sweep.bisect.bounds import Bounds, bounds_of
from fidgpt.sweep.bisect.culprits import Culprits
from fidgpt.sweep.bisect.log import ProbeLog
from fidgpt.sweep.bisect.minimal import Verdict, minimal
from fidgpt.sweep.bisect.pieces import Difference, Pieces
from fidgpt.sweep.bisect.probes import Measure, Probe, Probes
from fidgpt.sweep.results.objective import (
    objective_of,
    refuse_unreported_by,
    reported_by,
)
from fidgpt.sweep.results.reportable import refuse_unreportable


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
