"""Where a run shows itself, besides the terminal and its own metrics.jsonl."""

from collections.abc import Callable
from typing import Any

import fiddle as fdl

from fidgpt.train import MLflow, TensorBoard, Tracker, Trackio, Trainer, WandB

_ORDER: list[Callable[..., Tracker]] = [MLflow, TensorBoard, Trackio, WandB]


def use_mlflow(
    cfg: fdl.Config[Trainer], experiment: str = "fidgpt", tracking_uri: str | None = None
) -> None:
    """MLflow hears of the run: in `mlflow.db` beside it, or on the server of `tracking_uri`."""
    _add(cfg, fdl.Config(MLflow, experiment=experiment, tracking_uri=tracking_uri))


def use_tensorboard(cfg: fdl.Config[Trainer]) -> None:
    """TensorBoard reads the run in its directory."""
    _add(cfg, fdl.Config(TensorBoard))


def use_trackio(
    cfg: fdl.Config[Trainer], project: str = "fidgpt", space: str | None = None
) -> None:
    """Trackio hears of the run: on this machine, or in a Space of Hugging Face's."""
    _add(cfg, fdl.Config(Trackio, project=project, space=space))


def use_wandb(
    cfg: fdl.Config[Trainer],
    project: str = "fidgpt",
    entity: str | None = None,
    mode: str | None = None,
) -> None:
    """Weights & Biases hears of the run; offline where no account is known, or `mode` says so."""
    _add(cfg, fdl.Config(WandB, project=project, entity=entity, mode=mode))


def _add(cfg: fdl.Config[Trainer], tracker: fdl.Config) -> None:
    """Behind those that there are, in one order whoever comes first; in place of its own kind."""
    others = [one for one in cfg.trackers if _kind(one) is not _kind(tracker)]
    known = sorted(
        (one for one in [*others, tracker] if _kind(one) in _ORDER),
        key=lambda one: _ORDER.index(_kind(one)),
    )
    cfg.trackers = [one for one in others if _kind(one) not in _ORDER] + known


def _kind(tracker: Any) -> Any:
    return fdl.get_callable(tracker) if isinstance(tracker, fdl.Buildable) else type(tracker)
