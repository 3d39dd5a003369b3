"""`--print=plan`: what a run takes on its mesh, or on every mesh of the hardware."""

import os
from dataclasses import replace

from fidgpt.cli.flags import FLAGS
from fidgpt.compose.composition import Composition
from fidgpt.compose.reproduction import train_command
from fidgpt.graph import ConfigError
from fidgpt.model.wrappers import InFloat8
from fidgpt.plan import Cluster, Plan, Planner, Ranking
from fidgpt.train import Trainer, device
from fidgpt.train.estimates.plan_text import page, plan_text, plans_text
from fidgpt.train.run_directory import print_stderr


def planned(
    composition: Composition,
    trainer: Trainer,
    *,
    form: str,
    title: str,
    price: float | None,
    color: bool,
) -> str:
    """Return the plan of a config that is built, as text or as a page, which has the title.

    Raises:
      ConfigError: the hardware is unknown, or nothing divides or fits.
    """
    try:
        planner = Planner(trainer, cluster_of(trainer))
        has_mesh = _has_mesh(trainer, planner)
        ranking = Ranking([_plan(planner, trainer)], 1, 1) if has_mesh else planner.search()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    start = train_command(composition.directives, allowed=FLAGS.allow)
    if form == "plan-html":
        return page(ranking, planner, start, title=title)
    if has_mesh:
        return plan_text(planner, ranking.plans[0], price=price, color=color)
    return plans_text(ranking, planner, start=start, price=price, color=color)


def cluster_of(trainer: Trainer) -> Cluster:
    """Return the devices that are named or at hand.

    Raises:
      ValueError: there are none of that name, or they do not multiply as the config says.
    """
    dtype = trainer.precision.dtype
    if name := os.environ.get(device.VARIABLE):
        named = device.machine_named(name, dtype)
        has_float8 = any(isinstance(module, InFloat8) for module in trainer.model.modules())
        if has_float8 and "float8" not in named.device.flops:
            raise ValueError(f"{named.device.title} has no products in float8: omit use_float8.")
        return named
    return device.cluster_at_hand(trainer.parallel, dtype)


def _has_mesh(trainer: Trainer, planner: Planner) -> bool:
    """Whether the config has a mesh of its own, or there is no choice of one."""
    return bool(trainer.parallel.mesh.size > 1 or _names(trainer) or planner.cluster.size == 1)


def _names(trainer: Trainer) -> list[str]:
    """Return the axes, except the axis of rows, whose size the config leaves to the devices."""
    sizes = trainer.parallel.mesh.sizes
    return [name for name, size in sizes.items() if size == -1 and name != "replicate"]


def _plan(planner: Planner, trainer: Trainer) -> Plan:
    own, number = trainer.parallel.mesh, planner.cluster.size
    copies, left = divmod(number, own.size)
    if copies > 1 and not left and own.sizes.get("replicate") == 1 and -1 not in own.sizes.values():
        print_stderr(
            f"warning: {number} devices hold {copies} copies of the mesh of {own}: "
            f"add replicate={copies}."
        )
        own = replace(own, replicate=copies)
    mesh = own.over(number)
    planner.check(mesh)
    return planner.plan(planner.setting(mesh))
