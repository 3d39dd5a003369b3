"""Compare plans with published runs: `python benchmarks/planning/compare.py [--fit]`.

Prints the error of each run, and its median over those that constants were fitted to and over those
that were held out. With `--fit` it looks for the two shares of each device that fit best.
"""

import argparse
import itertools
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from published import RUNS, Published

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.plan import Plan, Planner, cluster_named
from fidgpt.runs.building import build_trainer
from fidgpt.train.device import VARIABLE

_PRODUCTS = [0.40 + 0.02 * step for step in range(25)]
_ATTENTION = [0.25, 0.35, 0.45, 0.55]  # more is not reached by fused attention in training


def planned(run: Published) -> tuple[Planner, Plan]:
    """Return the planner of a published run, and its plan."""
    os.environ[VARIABLE] = run.hardware
    composition = compose(run.directives, own_catalogue(()))
    trainer = build_trainer(composition.resolved, composition.catalogue, will_run=False)
    planner = Planner(trainer, cluster_named(run.hardware))
    mesh = trainer.parallel.layout(planner.cluster.size)
    return planner, planner.plan(planner.setting(mesh))


def errors(pairs: Iterable[tuple[float, float]]) -> list[float]:
    """Return the relative differences of seconds that are planned, and of those measured."""
    return [abs(measured / planned - 1) for planned, measured in pairs if measured]


def fit(known: Sequence[tuple[Published, Planner, Plan]]) -> None:
    """Print the shares of each device that fit best, by the source with the largest error."""
    for name in dict.fromkeys(planner.cluster.device.name for _, planner, _ in known):
        own = [one for one in known if one[1].cluster.device.name == name and one[0].fits]
        best: tuple[float, float, float] | None = None
        for products, attention in itertools.product(_PRODUCTS, _ATTENTION) if own else ():
            of_sources = defaultdict[str, list[tuple[float, float]]](list)
            for run, planner, plan in own:
                device = replace(planner.cluster.device, products=products, attention=attention)
                planner.cluster = replace(planner.cluster, device=device)
                rate = planner.plan(plan.setting).tokens_per_second
                of_sources[run.source].append((rate, run.tokens))
            error = max(statistics.mean(errors(pairs)) for pairs in of_sources.values())
            best = min(best or (9.0, 0.0, 0.0), (error, products, attention))
        if best is not None:
            print(f"{name}: products={best[1]:.2f}, attention={best[2]:.2f}: {best[0]:.1%} off")


def main() -> None:
    """Print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true")
    arguments = parser.parse_args()
    known = []
    for run in RUNS:
        planner, plan = planned(run)
        known.append((run, planner, plan))
        held = plan.memory[plan.worst]
        gib = (held.total - held.communication) / 2**30
        memory = f"{gib:6.1f} of {run.gib:5.1f} GiB" if run.gib else ""
        print(
            f"{'fit ' if run.fits else 'held'} {run.hardware:14} {run.directives[0]:20} "
            f"{run.directives[1].removeprefix('set:model.'):24} {plan.tokens_per_second:9,.0f} "
            f"of {run.tokens:9,.0f} {plan.tokens_per_second / run.tokens - 1:+6.1%} {memory}",
            flush=True,
        )
    for fits in (True, False):
        own = [(run, plan) for run, _, plan in known if run.fits is fits]
        times = errors((plan.tokens_per_second, run.tokens) for run, plan in own)
        sizes = errors(
            (plan.memory[plan.worst].total - plan.memory[plan.worst].communication, run.gib * 2**30)
            for run, plan in own
        )
        what = "fitted" if fits else "held out"
        print(
            f"{what}: time {statistics.median(times):.1%} in the median, {max(times):.1%} at worst"
        )
        if sizes:
            print(f"{what}: memory {statistics.median(sizes):.1%} in the median, {max(sizes):.1%}")
    if arguments.fit:
        fit(known)


if __name__ == "__main__":
    main()
