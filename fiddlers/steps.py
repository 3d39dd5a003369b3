"""Optimizer steps: clipping, skipping, averaging, metrics."""

import fiddle as fdl

from fidgpt.optim import CosineDecay, Phases, fraction
from fidgpt.tags import AverageBeta, MaxGradValue, NumSteps
from fidgpt.train import (
    ClipByValue,
    Ema,
    EmaDecaySqrt,
    RollBack,
    SkipDiverged,
    SkipOutliers,
    StepMeters,
    StepReplay,
    Trainer,
)

__all__ = [
    "use_divergence_skip",
    "use_ema",
    "use_ema_decay_sqrt",
    "use_roll_back",
    "use_skip_step",
    "use_step_meters",
    "use_step_replay",
    "use_value_clipping",
    "use_weight_decay_schedule",
]


def use_value_clipping(cfg: fdl.Config[Trainer], max_grad_value: float = 1.0) -> None:
    """Clip each element of a gradient, before its norm is clipped."""
    cfg.gradient_transform = fdl.Config(
        ClipByValue, max_grad_value=MaxGradValue.new(max_grad_value)
    )


def use_skip_step(cfg: fdl.Config[Trainer], window: int = 128, num_deviations: float = 6.0) -> None:
    """Skip steps whose loss or gradient norm is an outlier (OLMo).

    Args:
      cfg: the graph to change.
      window: number of previous steps to compare to.
      num_deviations: threshold in standard deviations above their mean.
    """
    cfg.guard = fdl.Config(SkipOutliers, window=window, num_deviations=num_deviations)


def use_divergence_skip(cfg: fdl.Config[Trainer], most: int = 10) -> None:
    """Skip steps with NaN or inf in loss or gradients.

    Args:
      cfg: the graph to change.
      most: maximum number of consecutive skips, after which the run stops.
    """
    cfg.divergence = fdl.Config(SkipDiverged, most=most)


def use_roll_back(cfg: fdl.Config[Trainer], most: int = 3, skip_batches: int = 0) -> None:
    """On divergence, return to the last checkpoint and skip batches (PaLM).

    Args:
      cfg: the graph to change.
      most: maximum number of rollbacks per run, after which it stops.
      skip_batches: number of batches to skip after the one that diverged.
    """
    cfg.divergence = fdl.Config(RollBack, most=most, skip_batches=skip_batches)


def use_ema(cfg: fdl.Config[Trainer], beta: float = 0.999) -> None:
    """Keep an exponential moving average of the weights, and evaluate it too.

    Args:
      cfg: the graph to change.
      beta: decay rate of the average per step.
    """
    cfg.average = fdl.Config(Ema, beta=AverageBeta.new(beta))


def use_ema_decay_sqrt(
    cfg: fdl.Config[Trainer],
    beta: float = 0.999,
    switch_ratio: float = 0.8,
    decay_ratio: float = 0.2,
) -> None:
    """Keep an average of the weights with a 1 - sqrt decay after a switch.

    Args:
      cfg: the graph to change.
      beta: decay rate before the switch.
      switch_ratio: fraction of the run before the switch; see `average.switch_step`.
      decay_ratio: fraction of the run of the decay; see `average.decay_steps`.
    """
    cfg.average = fdl.Config(
        EmaDecaySqrt,
        beta=AverageBeta.new(beta),
        switch_step=fdl.Config(fraction, of=NumSteps.new(), ratio=switch_ratio),
        decay_steps=fdl.Config(fraction, of=NumSteps.new(), ratio=decay_ratio),
    )


def use_step_meters(cfg: fdl.Config[Trainer], every: int = 10) -> None:
    """Log gradient norm, learning rate and update-to-weight ratio of each parameter group.

    Args:
      cfg: the graph to change.
      every: steps between measurements.
    """
    cfg.meters = fdl.Config(StepMeters, every=every)


def use_step_replay(cfg: fdl.Config[Trainer], every: int = 1000, stops: bool = True) -> None:
    """Compute every n-th step twice, to find processors that compute wrong numbers.

    Args:
      cfg: the graph to change.
      every: interval in steps.
      stops: whether a difference ends the run, or is only a warning.
    """
    cfg.replay = fdl.Config(StepReplay, every=every, stops=stops)


def use_weight_decay_schedule(cfg: fdl.Config[Trainer], min_ratio: float = 0.0) -> None:
    """Decay the weight decay by a half cosine over the run.

    Args:
      cfg: the graph to change.
      min_ratio: fraction of the weight decay at the end.
    """
    cfg.schedules = {
        "weight_decay": fdl.Config(
            Phases,
            num_steps=NumSteps.new(),
            shape=fdl.Config(CosineDecay),
            warmup=0,
            min_lr_ratio=min_ratio,
        )
    }
