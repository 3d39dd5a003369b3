"""Experiment trackers."""

from collections.abc import Iterable
from typing import Any

import fiddle as fdl

from fidgpt.graph import title
from fidgpt.train import Console, JSONLines, MLflow, TensorBoard, Trackio, Trainer, WandB

__all__ = ["use_mlflow", "use_tensorboard", "use_trackio", "use_wandb"]

_OF_EVERY_RUN = (Console, JSONLines)  # stand first


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
    cfg.trackers = added_by_kind(cfg.trackers, tracker)


def added_by_kind(parts: Iterable[Any], part: fdl.Config) -> list[Any]:
    """Return parts with one more, in place of one of its kind, by name: in one order for all."""
    others = [other for other in parts if _kind(other) is not _kind(part)]
    return sorted([*others, part], key=lambda node: (_kind(node) not in _OF_EVERY_RUN, title(node)))


def _kind(part: Any) -> Any:
    return fdl.get_callable(part) if isinstance(part, fdl.Buildable) else type(part)
