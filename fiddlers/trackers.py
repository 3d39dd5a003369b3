"""Experiment trackers."""

from collections.abc import Callable
from typing import Any

import fiddle as fdl

from fidgpt.train import MLflow, TensorBoard, Tracker, Trackio, Trainer, WandB

# The order in a config, independent of that of fiddlers; trackers not listed come first.
_ORDER: list[Callable[..., Tracker]] = [MLflow, TensorBoard, Trackio, WandB]


def use_mlflow(
    cfg: fdl.Config[Trainer], experiment: str = "fidgpt", tracking_uri: str | None = None
) -> None:
    """Log to MLflow: to `mlflow.db` beside the run, or the server at `tracking_uri`."""
    _add(cfg, fdl.Config(MLflow, experiment=experiment, tracking_uri=tracking_uri))


def use_tensorboard(cfg: fdl.Config[Trainer]) -> None:
    """Write TensorBoard logs into the run's directory."""
    _add(cfg, fdl.Config(TensorBoard))


def use_trackio(
    cfg: fdl.Config[Trainer], project: str = "fidgpt", space: str | None = None
) -> None:
    """Log to Trackio, on this machine or in a Hugging Face Space."""
    _add(cfg, fdl.Config(Trackio, project=project, space=space))


def use_wandb(
    cfg: fdl.Config[Trainer],
    project: str = "fidgpt",
    entity: str | None = None,
    mode: str | None = None,
) -> None:
    """Log to Weights & Biases; offline without an account or with `mode`."""
    _add(cfg, fdl.Config(WandB, project=project, entity=entity, mode=mode))


def _add(cfg: fdl.Config[Trainer], tracker: fdl.Config) -> None:
    """Add a tracker in a fixed order, replacing one of its kind."""
    others = [one for one in cfg.trackers if _kind(one) is not _kind(tracker)]
    known = sorted(
        (one for one in [*others, tracker] if _kind(one) in _ORDER),
        key=lambda one: _ORDER.index(_kind(one)),
    )
    cfg.trackers = [one for one in others if _kind(one) not in _ORDER] + known


def _kind(tracker: Any) -> Any:
    return fdl.get_callable(tracker) if isinstance(tracker, fdl.Buildable) else type(tracker)
