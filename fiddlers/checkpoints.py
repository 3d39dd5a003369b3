"""Checkpoints: when to save, what to keep, and initialization from another run."""

from collections.abc import Mapping, Sequence

import fiddle as fdl

from fidgpt.graph import ConfigError
from fidgpt.train import (
    EveryMinutes,
    KeepBest,
    KeepEvery,
    Mirror,
    Trainer,
    WriteBeside,
    initial_weights,
)


def save_every(cfg: fdl.Config[Trainer], num_steps: int = 250, keep_last: int = 3) -> None:
    """Save a checkpoint every `num_steps` steps, and keep the latest ones.

    Args:
      cfg: the graph to change.
      num_steps: steps between checkpoints.
      keep_last: number of checkpoints to keep.
    """
    cfg.checkpoints.every = num_steps
    cfg.checkpoints.keep_last = keep_last


def save_by_time(cfg: fdl.Config[Trainer], minutes: float = 15.0) -> None:
    """Also save a checkpoint after a period of time, until the next one is saved."""
    cfg.checkpoints.temporary = fdl.Config(EveryMinutes, minutes)


def keep_checkpoints(cfg: fdl.Config[Trainer], every: int = 1000, until: int | None = None) -> None:
    """Keep a checkpoint every so many steps for good.

    A further call applies after the last step of the previous one, and replaces those that end no
    sooner.

    Args:
      cfg: the graph to change.
      every: in steps.
      until: the last step to which this applies; defaults to the end.
    """
    kept = [
        part
        for part in fdl.ordered_arguments(cfg.checkpoints).get("keep", ())
        if part.until is not None and (until is None or part.until < until)
    ]
    cfg.checkpoints.keep = [*kept, fdl.Config(KeepEvery, every=every, until=until)]


def keep_best(cfg: fdl.Config[Trainer], metric: str = "validation/loss") -> None:
    """Keep the checkpoint with the lowest value of a metric besides the others.

    Raises:
      ConfigError: no evaluator of the config measures it.
    """
    if metric.partition("/")[0] not in cfg.evaluators:
        known = ", ".join(cfg.evaluators) or "none"
        raise ConfigError(
            f"metric={metric!r} is of no evaluator of this config, which has {known}."
        )
    cfg.checkpoints.best = fdl.Config(KeepBest, metric)


def use_async_checkpoints(cfg: fdl.Config[Trainer]) -> None:
    """Write checkpoints in the background, after copying their state."""
    cfg.checkpoints.writer = fdl.Config(WriteBeside)


def mirror_checkpoints(cfg: fdl.Config[Trainer], url: str) -> None:
    """Keep a second copy of the checkpoints at a URL, from which a run can resume.

    Args:
      cfg: the graph to change.
      url: a folder for this run alone, such as gs://bucket/runs/first.
    """
    cfg.checkpoints.mirror = fdl.Config(Mirror, url)


def initialize_from(
    cfg: fdl.Config[Trainer],
    path: str,
    only: Sequence[str] = ("*",),
    renamed: Mapping[str, str] | None = None,
    step: int | None = None,
) -> None:
    """Initialize some or all weights from another run.

    Args:
      cfg: the graph to change.
      path: the run, one of its checkpoints, or a file of safetensors.
      only: names in this model, with `*` as wildcard, such as `embedding`.
      renamed: maps names of this model to different ones in the file.
      step: of the run; defaults to its latest checkpoint.
    """
    cfg.weights = fdl.Partial(
        initial_weights, path=path, only=list(only), renamed=renamed, step=step
    )
