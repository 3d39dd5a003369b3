"""`sweep.py --scaling` and `--budget`: the scaling law of a sweep, and what to train."""

import os
from typing import TYPE_CHECKING

from fidgpt.cli.flags import FLAGS
from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.composition import compose
from fidgpt.compose.reproduction import train_command
from fidgpt.graph import ConfigError
from fidgpt.plan import NoPlan, Planner, cluster_named
from fidgpt.runs.building import build_trainer
from fidgpt.sweep.objective import usual
from fidgpt.sweep.scaling import Run, fit, parabolas
from fidgpt.sweep.scaling.advice import (
    advised_directives,
    budget_flops,
    draw,
    law_text,
    runs_of,
)
from fidgpt.train import device
from fidgpt.train.estimates.plan_text import command

if TYPE_CHECKING:
    from rich.console import Console

    from fidgpt.sweep import Sweep
    from fidgpt.sweep.results import Results


def budget(sweep: "Sweep") -> float:
    """Return the operations of --budget.

    Raises:
      ConfigError: it is none, or needs hardware or a price.
    """
    name = os.environ.get(device.VARIABLE)
    size = cluster_named(name).size if name and not name.startswith("cpu") else 1
    speed = sweep.speed() if name else None
    return budget_flops(FLAGS.budget, flops_per_second=speed, size=size, price=FLAGS.price)


def refuse_before(sweep: "Sweep") -> None:
    """Raise ConfigError if the points of a sweep could never give a law, or --budget is none."""
    points = [(point.cost.parameters, point.cost.tokens) for point in sweep.points]
    fit([Run(*pair, flops=1.0, loss=1.0 + 1 / n) for n, pair in enumerate(points, 1)], draws=1)
    if FLAGS.budget:
        budget(sweep)


def show(console: "Console", sweep: "Sweep", results: "Results") -> None:
    """Print the law of a sweep's results, and what to train for --budget.

    Raises:
      ConfigError: too few points are finished.
    """
    rows = [*results]
    metric = (sweep.objective or usual(rows)).name
    costs = {point.fingerprint: point.cost for point in sweep.points}
    runs = runs_of(rows, costs, metric)
    law, curves = fit(runs), parabolas(runs)
    flops = budget(sweep) if FLAGS.budget else None
    console.print(f"\n{metric}: {law_text(law, curves, flops=flops)}", soft_wrap=True, markup=False)
    path = sweep.directory / "scaling.png"
    try:
        draw(law, curves, path)
        console.print(f"Drawn: {path}", soft_wrap=True)
    except ConfigError as error:
        console.print(str(error), soft_wrap=True, markup=False)
    if flops is not None:
        directives, remarks = advised_directives(rows, law, flops, metric=metric)
        for line in [*remarks, _command(directives)]:
            console.print(line, soft_wrap=True, markup=False)


def _command(directives: list[str]) -> str:
    """Return the command of what to train, on the best mesh of --hardware if that is given."""
    name, start = os.environ.get(device.VARIABLE), train_command(directives, allowed=FLAGS.allow)
    if not name:
        return start
    composition = compose(directives, own_catalogue(tuple(FLAGS.allow)))
    trainer = build_trainer(composition.resolved, composition.catalogue)
    planner = Planner(trainer, cluster_named(name))
    try:
        best = planner.search().plans[0]
    except NoPlan as error:
        return f"{start}\n{error}"
    line = command(best.setting, planner, start)
    days = f"{best.days:,.3g} days"
    if not best.fits:
        days += ", if the memory were enough"
    return f"{line}\n{best.setting.mesh}: {days}"
