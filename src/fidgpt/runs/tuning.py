"""What a run computes with, chosen on the machine at hand and written into its config.

A config whose precision is `native_precision` leaves the number format to be chosen, and what it
does not set of attention's kernels and the compilation of blocks.
"""

from typing import Any

import fiddle as fdl

from fidgpt import graph
from fidgpt.compose.composition import Composition, compose
from fidgpt.model import Compile, blockwise, fastest, sdpa
from fidgpt.train import BFloat16, Float32, Trainer, native_precision
from fidgpt.train.estimates import tuning
from fidgpt.train.estimates.tuning import Choice

# The most exact one first, and last the one of accelerators.
FORMATS = (fdl.Config(Float32), fdl.Config(Float32, products="medium"), fdl.Config(BFloat16))
# Beside `fastest`, which calls one of them.
KERNELS: dict[str, Any] = {
    "by torch": sdpa,
    "by blocks of 128 queries": fdl.Partial(blockwise, block_size=128),
    "by blocks of 256 queries": fdl.Partial(blockwise, block_size=256),
}


def is_open(cfg: fdl.Config) -> bool:
    """Return whether a config leaves its number format to be chosen."""
    precision = getattr(cfg, "precision", None)
    is_node = isinstance(precision, fdl.Config)
    return is_node and fdl.get_callable(precision) is native_precision


def _may_compile(cfg: fdl.Config) -> bool:
    return getattr(getattr(cfg, "model", None), "compile", ...) is None


def _open_attentions(cfg: fdl.Config) -> list[Any]:
    """Return the parts of a config that leave their kernel open."""
    return [attention for attention in _attentions(cfg) if attention.kernel is fastest]


def _attentions(cfg: fdl.Config) -> list[Any]:
    """Return the parts of a config that have a kernel."""
    return [part.value for part in graph.parts(cfg) if hasattr(part.value, "kernel")]


def choose(composition: Composition, trainer: Trainer, *, renew: bool = False) -> Choice | None:
    """Measure what a config leaves open; None if that is nothing, or not worth it.

    Args:
      composition: the config.
      trainer: what it builds.
      renew: measure again, replacing the remembered result.
    """
    if not is_open(composition.config):
        return None
    kernels = {
        name: fdl.build(kernel) if isinstance(kernel, fdl.Buildable) else kernel
        for name, kernel in KERNELS.items()
    }
    return tuning.choose(
        trainer,
        [fdl.build(format) for format in FORMATS],
        kernels=kernels if _open_attentions(composition.config) else {},
        may_compile=_may_compile(composition.config),
        renew=renew,
    )


def tuned(composition: Composition, choice: Choice) -> Composition:
    """Return a composition in which the choice is set, so that a run of it repeats exactly."""
    cfg = graph.clone(composition.config)
    names = [tuning.name_of(fdl.build(format)) for format in FORMATS]
    with graph.attributed_to(f"measured on this machine: {choice.reason}"):
        cfg.precision = graph.clone(FORMATS[names.index(tuning.name_of(choice.precision))])
        if choice.compiles:
            cfg.model.compile = fdl.Config(Compile)
        if choice.kernel is not None:
            for attention in _open_attentions(cfg):
                attention.kernel = graph.clone(KERNELS[choice.kernel])
    return compose([], composition.catalogue, base=cfg)


def tuned_alike(cfg: fdl.Config, old: fdl.Config) -> fdl.Config:
    """Return a config with what was chosen for an earlier run of it."""
    if not is_open(cfg) or is_open(old):
        return cfg
    changed, old = graph.clone(cfg), graph.clone(old)
    changed.precision = old.precision
    if _may_compile(cfg) and not _may_compile(old):
        changed.model.compile = old.model.compile
    for attention, kept in zip(_attentions(changed), _attentions(old), strict=False):
        if attention.kernel is fastest and kept.kernel is not fastest:
            attention.kernel = kept.kernel
    return changed
