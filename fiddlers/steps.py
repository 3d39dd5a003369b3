"""What happens around an optimizer step: clipping, steps left out, averages, and what is seen."""

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
    Trainer,
)


def use_value_clipping(cfg: fdl.Config[Trainer], max_grad_value: float = 1.0) -> None:
    """No number of a gradient is further from zero than this, before the norm is clipped."""
    cfg.gradient_transform = fdl.Config(
        ClipByValue, max_grad_value=MaxGradValue.new(max_grad_value)
    )


def use_skip_step(cfg: fdl.Config[Trainer], window: int = 128, num_deviations: float = 6.0) -> None:
    """Leaves out steps whose loss or gradient norm is far above those before (OLMo).

    Args:
      cfg: the graph to change.
      window: steps that a step is compared with.
      num_deviations: standard deviations above their mean.
    """
    cfg.guard = fdl.Config(SkipOutliers, window=window, num_deviations=num_deviations)


def use_divergence_skip(cfg: fdl.Config[Trainer], most: int = 10) -> None:
    """A step whose loss or gradients are no numbers is left out.

    Args:
      cfg: the graph to change.
      most: such steps in a row; the run ends at the next one.
    """
    cfg.divergence = fdl.Config(SkipDiverged, most=most)


def use_roll_back(cfg: fdl.Config[Trainer], most: int = 3, skip_batches: int = 0) -> None:
    """A run that diverges goes back to its last checkpoint, and reads other batches (PaLM).

    Args:
      cfg: the graph to change.
      most: times in a run; it ends at the next one.
      skip_batches: how many are left out after the one that did harm.
    """
    cfg.divergence = fdl.Config(RollBack, most=most, skip_batches=skip_batches)


def use_ema(cfg: fdl.Config[Trainer], beta: float = 0.999) -> None:
    """Keeps an exponential moving average of the weights, and measures it too.

    Args:
      cfg: the graph to change.
      beta: share of the average that stays at each step.
    """
    cfg.average = fdl.Config(Ema, beta=AverageBeta.new(beta))


def use_ema_decay_sqrt(
    cfg: fdl.Config[Trainer],
    beta: float = 0.999,
    switch_ratio: float = 0.8,
    decay_ratio: float = 0.2,
) -> None:
    """Keeps an average of weights in which steps count less and less after a switch.

    Args:
      cfg: the graph to change.
      beta: weights count 1 - beta before the switch.
      switch_ratio: share of the run before the switch; `average.switch_step` says it in steps.
      decay_ratio: share of the run over which steps lose their weight; `average.decay_steps`.
    """
    cfg.average = fdl.Config(
        EmaDecaySqrt,
        beta=AverageBeta.new(beta),
        switch_step=fdl.Config(fraction, of=NumSteps.new(), ratio=switch_ratio),
        decay_steps=fdl.Config(fraction, of=NumSteps.new(), ratio=decay_ratio),
    )


def use_step_meters(cfg: fdl.Config[Trainer], every: int = 10) -> None:
    """Gradient norm, learning rate and update-to-weight ratio of each group of parameters.

    Args:
      cfg: the graph to change.
      every: steps between two measurements.
    """
    cfg.meters = fdl.Config(StepMeters, every=every)


def use_weight_decay_schedule(cfg: fdl.Config[Trainer], min_ratio: float = 0.0) -> None:
    """Weight decay falls along half a cosine over the run.

    Args:
      cfg: the graph to change.
      min_ratio: what is left of it in the end.
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
