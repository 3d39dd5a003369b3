"""Trackers that show a run elsewhere: several at once, each beside the training and not in it."""

from fidgpt.train.tracking.aside import Aside
from fidgpt.train.tracking.described import Described
from fidgpt.train.tracking.mlflow import MLflow
from fidgpt.train.tracking.several import Trackers, require_packages
from fidgpt.train.tracking.tensorboard import TensorBoard
from fidgpt.train.tracking.trackio import Trackio
from fidgpt.train.tracking.wandb import WandB

__all__ = [
    "Aside",
    "Described",
    "MLflow",
    "TensorBoard",
    "Trackers",
    "Trackio",
    "WandB",
    "require_packages",
]
