"""Optimizers, parameter groups and schedules."""

from fidgpt.optim.adamw import adamw
from fidgpt.optim.groups import decay_matrices
from fidgpt.optim.schedules import (
    Constant,
    Schedule,
    WarmupCosine,
    WarmupStableDecay,
    fraction,
)

__all__ = [
    "Constant",
    "Schedule",
    "WarmupCosine",
    "WarmupStableDecay",
    "adamw",
    "decay_matrices",
    "fraction",
]
