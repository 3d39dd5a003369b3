"""How long the points of a sweep take, from points that ran or from planned steps."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from fidgpt import cost
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.plan import Planner
from fidgpt.runs.building import build_trainer
from fidgpt.sweep.points import Point
from fidgpt.train.device import cluster_at_hand, machine_named

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
        return planner.plan(setting).step
    except cost.NEEDS_NUMBERS:
        return planner.plan_of_weights(setting).step
