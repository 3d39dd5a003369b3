"""Learning-rate schedules."""

from typing import Any

import fiddle as fdl

from fidgpt.graph import ConfigError, swapped, title
from fidgpt.graph.fiddle import set_arguments
from fidgpt.graph.provenance import keep_assignments
from fidgpt.optim import (
    Constant,
    CosineDecay,
    InverseDecay,
    InverseSqrtDecay,
    LinearDecay,
    NoDecay,
    Phases,
    PolynomialDecay,
    WarmupCosine,
    WarmupStableDecay,
)
from fidgpt.tags import NumSteps, WarmupSteps
from fidgpt.train import Trainer

__all__ = [
    "set_warmup",
    "use_constant",
    "use_cosine",
    "use_cycles",
    "use_inverse",
    "use_inverse_sqrt",
    "use_linear",
    "use_polynomial",
    "use_wsd",
    "use_wsd_s",
]

# Schedules as `Phases`: the shape of their decay, and its default minimum.
_AS_PHASES: dict[Any, tuple[Any, float]] = {
    WarmupCosine: (CosineDecay, 0.1),
    WarmupStableDecay: (LinearDecay, 0.0),
    Constant: (NoDecay, 0.1),
}
_RENAMED = {"warmup_steps": "warmup", "decay_steps": "decay", "min_ratio": "min_lr_ratio"}


def use_constant(cfg: fdl.Config[Trainer]) -> None:
    """Use a constant learning rate after the warm-up."""
    _fall(cfg, fdl.Config(NoDecay))


def use_cosine(cfg: fdl.Config[Trainer], min_lr_ratio: float = 0.1) -> None:
    """Use cosine decay after the warm-up."""
    _fall(cfg, fdl.Config(CosineDecay), min_lr_ratio=min_lr_ratio)


def use_linear(cfg: fdl.Config[Trainer], min_lr_ratio: float = 0.1) -> None:
    """Use linear decay after the warm-up."""
    _fall(cfg, fdl.Config(LinearDecay), min_lr_ratio=min_lr_ratio)


def use_polynomial(cfg: fdl.Config[Trainer], power: float = 2.0, min_lr_ratio: float = 0.1) -> None:
    """Use polynomial decay after the warm-up."""
    _fall(cfg, fdl.Config(PolynomialDecay, power=power), min_lr_ratio=min_lr_ratio)


def use_inverse(cfg: fdl.Config[Trainer], min_lr_ratio: float = 0.1) -> None:
    """Use a decay whose inverse grows linearly, after the warm-up."""
    _fall(cfg, fdl.Config(InverseDecay), min_lr_ratio=min_lr_ratio)


def use_inverse_sqrt(
    cfg: fdl.Config[Trainer], timescale: int | None = None, min_lr_ratio: float = 0.0
) -> None:
    """Use inverse square-root decay after the warm-up.

    Args:
      cfg: the graph to change.
      timescale: steps after which the decay begins; defaults to the warm-up.
      min_lr_ratio: minimum as a fraction of the peak.
    """
    shape = fdl.Config(InverseSqrtDecay, timescale=timescale)
    _fall(cfg, shape, min_lr_ratio=min_lr_ratio)


def use_wsd(cfg: fdl.Config[Trainer], decay_ratio: float = 0.2, min_lr_ratio: float = 0.0) -> None:
    """Use warm-up, a stable phase and linear decay (WSD, a trapezoid).

    Args:
      cfg: the graph to change.
      decay_ratio: length of the decay as a fraction of the run; `schedule.decay` sets steps.
      min_lr_ratio: fraction of the peak at the end.
    """
    _fall(cfg, fdl.Config(LinearDecay), decay=_share(decay_ratio), min_lr_ratio=min_lr_ratio)


def use_wsd_s(
    cfg: fdl.Config[Trainer],
    cycles: int | list[int] = 4,
    decay_ratio: float = 0.1,
    min_lr_ratio: float = 0.1,
) -> None:
    """Use a stable rate with a short decay at the end of each cycle (WSD-S).

    The model at the end of each cycle is as good as the model of a run of this length (Wen et al.,
    2024, arXiv:2410.05192).

    A schedule that is chosen after it does not have its cycles; the cycles of `use_cycles`, before
    it or after it, replace its own.

    Args:
      cfg: the graph to change.
      cycles: number of cycles, or the steps at which they end.
      decay_ratio: length of the decay as a fraction of a cycle; `schedule.decay` sets steps.
      min_lr_ratio: fraction of the peak at the end of a cycle.
    """
    shape = fdl.Config(InverseDecay, cycles=cycles)
    _fall(cfg, shape, decay=_share(decay_ratio), min_lr_ratio=min_lr_ratio)


def use_cycles(
    cfg: fdl.Config[Trainer],
    cycles: int | list[int] | None = None,
    cycle_length: int | float | list[int] | None = None,
    rewarmup: int | float = 0.0,
) -> None:
    """Repeat the schedule in cycles.

    Args:
      cfg: the graph to change.
      cycles: number of cycles, or the steps at which they end; defaults to 2.
      cycle_length: alternatively, the length in steps or as a fraction of the run, or a list of
        lengths.
      rewarmup: warm-up of later cycles, in steps or as a fraction; 0 jumps to the peak.
    """
    if cycles is None and cycle_length is None:
        cycles = 2
    phases = _phases(cfg)
    phases.cycles, phases.cycle_length, phases.rewarmup = cycles, cycle_length, rewarmup


def set_warmup(cfg: fdl.Config[Trainer], warmup: int | float = 0.1) -> None:
    """Set the warm-up, in steps or as a fraction of the first cycle."""
    _phases(cfg).warmup = warmup


def _share(decay_ratio: float) -> float:
    """Return a ratio as a float, since schedules take integers for steps."""
    if not 0 <= decay_ratio <= 1:
        raise ConfigError(
            f"{decay_ratio=} must be a fraction, from 0 to 1. For a decay in steps, set "
            "schedule.decay after it, such as set:schedule.decay=100."
        )
    return float(decay_ratio)


def _fall(
    cfg: fdl.Config[Trainer],
    shape: fdl.Config[Any],
    *,
    decay: float | None = None,
    min_lr_ratio: float = 0.1,
) -> None:
    phases = _phases(cfg)
    phases.shape, phases.decay, phases.min_lr_ratio = shape, decay, min_lr_ratio


def _phases(cfg: fdl.Config[Trainer]) -> fdl.Config[Phases]:
    """Return the schedule as `Phases`, replacing an equivalent one in the config."""
    old = cfg.schedule
    kind = fdl.get_callable(old)
    if kind is Phases:
        return old
    if kind not in _AS_PHASES:
        raise ConfigError(
            f"the schedule is {title(old)}, whose warm-up and decay are unknown; replace it by a "
            "schedule of fidgpt.optim first, such as use:schedule=WarmupCosine."
        )
    shape, floor = _AS_PHASES[kind]
    new = swapped(old, Phases, renamed=_RENAMED)
    implied = {"num_steps": NumSteps.new(), "warmup": 0, "min_lr_ratio": floor}
    for name, value in {**implied, "shape": fdl.Config(shape)}.items():
        if name not in set_arguments(new):
            setattr(new, name, value)
            keep_assignments(new, cfg, "schedule", known_as=name)
    fdl.add_tag(new, "warmup", WarmupSteps)
    cfg.schedule = new
    return new
