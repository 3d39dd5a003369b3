"""What a run saves, what of it stays, and what another run begins with."""

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
    """A checkpoint every so many steps, of which the newest stay.

    Args:
      cfg: the graph to change.
      num_steps: from one to the next.
      keep_last: how many stay.
    """
    cfg.checkpoints.every = num_steps
    cfg.checkpoints.keep_last = keep_last


def save_by_time(cfg: fdl.Config[Trainer], minutes: float = 15.0) -> None:
    """Saves as well when so much time has passed; such a checkpoint goes as the next one comes."""
    cfg.checkpoints.temporary = fdl.Config(EveryMinutes, minutes)


def keep_checkpoints(cfg: fdl.Config[Trainer], every: int = 1000, until: int | None = None) -> None:
    """Saves every so many steps for good; said again, after the step where that ended.

    Parts that were to end no sooner are replaced.

    Args:
      cfg: the graph to change.
      every: in steps.
      until: the last step that this is for; all that follow unless said.
    """
    kept = [
        part
        for part in fdl.ordered_arguments(cfg.checkpoints).get("keep", ())
        if part.until is not None and (until is None or part.until < until)
    ]
    cfg.checkpoints.keep = [*kept, fdl.Config(KeepEvery, every=every, until=until)]


def keep_best(cfg: fdl.Config[Trainer], metric: str = "validation/loss") -> None:
    """Keeps the checkpoint with the lowest value of a metric besides the others.

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
    """Checkpoints are copied at once and written while the steps that follow are made."""
    cfg.checkpoints.writer = fdl.Config(WriteBeside)


def mirror_checkpoints(cfg: fdl.Config[Trainer], url: str) -> None:
    """Keeps a second copy of the checkpoints at a URL, from which a run can go on.

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
    """Begins with the weights of another run, or with some of them.

    Args:
      cfg: the graph to change.
      path: the run, one of its checkpoints, or a file of safetensors.
      only: names in this model, with `*` for any letters, such as `embedding`.
      renamed: the name there for one here, where they differ.
      step: of the run; its newest checkpoint unless said.
    """
    cfg.weights = fdl.Partial(
        initial_weights, path=path, only=list(only), renamed=renamed, step=step
    )
