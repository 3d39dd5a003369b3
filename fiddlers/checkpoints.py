"""Checkpoints: when to save, what to keep, and initialization from another run."""

from collections.abc import Mapping, Sequence

import fiddle as fdl

from fidgpt.graph import ConfigError
from fidgpt.train import (
    BackgroundWriter,
    EveryMinutes,
    KeepBest,
    KeepEvery,
    MemoryCheckpoints,
    Mirror,
    Trainer,
    initial_weights,
)

__all__ = [
    "initialize_from",
    "keep_best",
    "keep_checkpoints",
    "mirror_checkpoints",
    "save_by_time",
    "save_every",
    "use_async_checkpoints",
    "use_memory_checkpoints",
]


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
    """Also save a temporary checkpoint whenever this much time has passed."""
    cfg.checkpoints.temporary = fdl.Config(EveryMinutes, minutes)


def keep_checkpoints(cfg: fdl.Config[Trainer], every: int = 1000, until: int | None = None) -> None:
    """Keep a checkpoint every `every` steps permanently.

    A later call applies after the `until` of earlier ones, and replaces those that end at the same
    step or later.

    Args:
      cfg: the graph to change.
      every: interval in steps.
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
            f"no evaluator of this config measures metric={metric!r}; it has {known}."
        )
    cfg.checkpoints.best = fdl.Config(KeepBest, metric)


def use_async_checkpoints(cfg: fdl.Config[Trainer]) -> None:
    """Write checkpoints in the background, after copying their state."""
    cfg.checkpoints.writer = fdl.Config(BackgroundWriter)


def use_memory_checkpoints(
    cfg: fdl.Config[Trainer], every: int = 10, folder: str = "/dev/shm", keep_last: int = 1
) -> None:
    """Also save in the memory of the machines, and of their neighbors, from which a run resumes.

    Args:
      cfg: the graph to change.
      every: interval in steps.
      folder: in memory that outlives processes, such as a tmpfs; may hold $VARIABLES.
      keep_last: number of checkpoints to keep there.
    """
    cfg.checkpoints.memory = fdl.Config(
        MemoryCheckpoints, every=every, folder=folder, keep_last=keep_last
    )


def mirror_checkpoints(cfg: fdl.Config[Trainer], url: str) -> None:
    """Keep a second copy of the checkpoints at a URL, from which a run can resume.

    Args:
      cfg: the graph to change.
      url: a folder for this run only, such as gs://bucket/runs/first.
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
      path: a run, one of its checkpoints, or a safetensors file.
      only: names in this model, with `*` as wildcard, such as `embedding`.
      renamed: maps names in this model to names in the file.
      step: step of the run's checkpoint; defaults to the latest.
    """
    cfg.weights = fdl.Partial(
        initial_weights, path=path, only=list(only), renamed=renamed, step=step
    )
