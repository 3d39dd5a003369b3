"""`sweep.py --scaling` and `--budget`: the scaling law of a sweep, and what to train."""

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from fidgpt.cli.flags import FLAGS
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.compose.reproduction import train_command
from fidgpt.cost import TRAINING_PASSES
from fidgpt.graph import ConfigError
from fidgpt.plan import Cluster, NoPlan, Plan, Planner, cluster_named
from fidgpt.runs.building import build_trainer
from fidgpt.sweep import scaling
from fidgpt.sweep.objective import usual
from fidgpt.train import device
from fidgpt.train.estimates.plan_text import command

if TYPE_CHECKING:
    from rich.console import Console

    from fidgpt.sweep import Sweep
    from fidgpt.sweep.results import Results

_GUESS = 0.4  # share of the peak FLOP/s that the first guess of the size assumes


def budget() -> tuple[float, bool]:
    """Return the number of --budget, and whether it counts seconds; otherwise it counts FLOPs.

    Raises:
      ConfigError: it is none, or needs hardware or a price.
    """
    name = os.environ.get(device.VARIABLE)
    size = None if not name else 1 if name.startswith("cpu") else cluster_named(name).size
    return scaling.budget_amount(FLAGS.budget, size=size, price=FLAGS.price)


def refuse_before(sweep: "Sweep") -> None:
    """Raise ConfigError if the points of a sweep could never give a law, or --budget is none."""
    points = [(point.cost.parameters, point.cost.tokens) for point in sweep.points]
    runs = [scaling.Run(*pair, flops=1.0, loss=1.0 + 1 / n) for n, pair in enumerate(points, 1)]
    scaling.fit(runs, draws=1)
    if FLAGS.budget:
        budget()


def show(console: "Console", sweep: "Sweep", results: "Results") -> None:
    """Print the law of a sweep's results, and what to train for --budget.

    Raises:
      ConfigError: too few points are finished.
    """
    rows = [*results]
    metric = (sweep.objective or usual(rows)).name
    costs = {point.fingerprint: point.cost for point in sweep.points}
    runs = scaling.runs_of(rows, costs, metric)
    law, curves = scaling.fit(runs), scaling.parabolas(runs)
    advised = partial(scaling.advised_directives, rows, law, metric=metric)
    flops = None
    if FLAGS.budget:
        flops, is_time = budget()
        flops = _bought(flops, advised) if is_time else flops
    text = scaling.law_text(law, curves, flops=flops)
    console.print(f"\n{metric}: {text}", soft_wrap=True, markup=False)
    path = sweep.directory / "scaling.png"
    try:
        scaling.draw(law, curves, path)
        console.print(f"Drawn: {path}", soft_wrap=True)
    except ConfigError as error:
        console.print(str(error), soft_wrap=True, markup=False)
    if flops is not None:
        directives, remarks = advised(flops)
        for line in [*remarks, _command(directives)]:
            console.print(line, soft_wrap=True, markup=False)


def _bought(seconds: float, advised: Callable[[float], tuple[list[str], list[str]]]) -> float:
    """Return the FLOPs that a time on --hardware buys, at the planned speed of the advised run."""
    cluster = _hardware()
    flops = seconds * _GUESS * cluster.size * cluster.device.peak("bfloat16")
    for _ in range(2):  # enough, as the speed changes little with the size
        planner, best = _best(advised(flops)[0])
        each = TRAINING_PASSES * planner.training.forward.total
        flops = seconds * each * best.tokens_per_second * best.cluster.size
    return flops


def _hardware() -> Cluster:
    return device.machine_named(os.environ[device.VARIABLE], torch.float32)


def _best(directives: list[str]) -> tuple[Planner, Plan]:
    """Return the fastest plan on --hardware.

    Raises:
      NoPlan: there is none.
    """
    composition = compose(directives, own_catalogue(tuple(FLAGS.allow)))
    planner = Planner(build_trainer(composition.resolved, composition.catalogue), _hardware())
    return planner, planner.search().plans[0]


def _command(directives: list[str]) -> str:
    """Return the command of what to train, on the best mesh of --hardware if that is given."""
    start = train_command(directives, allowed=FLAGS.allow)
    if not os.environ.get(device.VARIABLE):
        return start
    try:
        planner, best = _best(directives)
    except NoPlan as error:
        return f"{start}\n{error}"
    line = command(best.setting, planner, start)
    days = f"{best.days:,.3g} days"
    if not best.fits:
        days += ", if the memory were enough"
    return f"{line}\n{best.setting.mesh}: {days}"
