"""What a run computes with, chosen on the machine at hand and written into its config."""

from dataclasses import dataclass

import fiddle as fdl

from fidgpt import graph
from fidgpt.compose.composition import Composition, compose
from fidgpt.train import Trainer, Tuning, native_precision
from fidgpt.train.tuning import Choice


@dataclass(frozen=True)
class Open:
    """What a config leaves to its tuning.

    Attributes:
      precision: whether that is the number format.
      compile: whether that is the compilation of blocks.
    """

    precision: bool
    compile: bool


def left_open(cfg: fdl.Config) -> Open:
    """Return what a config leaves to be chosen; nothing if it has no tuning."""
    if not isinstance(getattr(cfg, "tuning", None), fdl.Buildable):
        return Open(False, False)
    precision, model = getattr(cfg, "precision", None), getattr(cfg, "model", None)
    return Open(
        precision=isinstance(precision, fdl.Config)
        and fdl.get_callable(precision) is native_precision,
        compile=getattr(model, "compile", ...) is None,
    )


def choose(made: Composition, trainer: Trainer, *, renew: bool = False) -> Choice | None:
    """Measure what a config leaves open; None if that is nothing, or not worth it.

    Args:
      made: the config.
      trainer: what it builds.
      renew: measure again what is remembered.
    """
    free = left_open(made.config)
    if trainer.tuning is None or not (free.precision or free.compile):
        return None
    return trainer.tuning.choose(trainer, keeps_precision=not free.precision, renew=renew)


def tuned(made: Composition, tuning: Tuning, choice: Choice) -> Composition:
    """Return a composition in which the choice is set, so that a run of it repeats exactly."""
    free, cfg = left_open(made.config), graph.clone(made.config)
    offered = cfg.tuning
    with graph.attributed_to(f"measured on this machine: {choice.reason}"):
        if free.precision:
            cfg.precision = offered.precisions[list(tuning.precisions).index(choice.precision)]
        if free.compile and choice.compiles:
            cfg.model.compile = offered.compile
        cfg.tuning = None
    return compose([], made.catalogue, base=cfg)


def tuned_alike(cfg: fdl.Config, old: fdl.Config) -> fdl.Config:
    """Return a config with what was chosen for an earlier run of it."""
    free = left_open(cfg)
    if getattr(old, "tuning", None) is not None or not (free.precision or free.compile):
        return cfg
    changed, old = graph.clone(cfg), graph.clone(old)
    changed.tuning = None
    if free.precision:
        changed.precision = old.precision
    if free.compile:
        changed.model.compile = old.model.compile
    return changed
