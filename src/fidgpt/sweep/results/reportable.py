"""Whether the runs of a config report an objective at all: known before one of them is trained."""

from collections.abc import Mapping

import fiddle as fdl
import torch

from fidgpt.cli.running.runs import build_trainer
from fidgpt.graph import ConfigError, suggest
from fidgpt.model.cost.layers import first_of_each
from fidgpt.model.reports import collecting
from fidgpt.sweep.results.objective import Objective
from fidgpt.train import Trainer
from fidgpt.train.losses.objective import NextToken

# What the trainer itself tells of every step.
_OF_STEPS = (
    *("grad_norm", "learning_rate", "loss", "loss_scale", "memory", "skipped", "tokens"),
    *("tokens_per_second", "utilisation"),
)
# Groups of numbers that are measured as one trains, and not by an evaluator.
_GROUPS = ("grad_norm", "learning_rate", "moe", "mtp", "update_ratio")


def refuse_unreportable(objective: Objective, cfg: fdl.Config) -> None:
    """Refuses a number that neither the trainer of a config tells, nor a part, nor an evaluator.

    What is measured under a name such as `moe/load_max`, only a run shows.

    Args:
      objective: such as `validation/loss`.
      cfg: the graph of the run.

    Raises:
      ConfigError: no run has such a number.
    """
    group, slash, _ = objective.name.partition("/")
    evaluators = getattr(cfg, "evaluators", None)
    if slash and isinstance(evaluators, Mapping) and group not in (*_GROUPS, *evaluators):
        raise ConfigError(
            f"no run reports --objective={objective.text}: it has no evaluator {group!r}. "
            f"{suggest(group, evaluators)}"
        )
    if not slash and objective.name not in _OF_STEPS:
        _refuse_untold(objective, build_trainer(cfg))


def _refuse_untold(objective: Objective, trainer: Trainer) -> None:
    told = _told_by_parts(trainer)
    if told is not None and objective.name not in told:
        names = [*_OF_STEPS, *told, *(f"{name}/loss" for name in trainer.evaluators)]
        raise ConfigError(
            f"no run reports --objective={objective.text}. {suggest(objective.name, names)}"
        )


def _told_by_parts(trainer: Trainer) -> list[str] | None:
    """The names of what parts report of a step; None where that cannot be tried."""
    window = torch.zeros(1, trainer.seq_len + 1, dtype=torch.int64, device="meta")
    try:
        with first_of_each(trainer.model), collecting() as reports:
            NextToken(trainer.model, trainer.loss)(window)
        settled = [part.settle(tally) for part, tally in reports.tallies.items()]
    except Exception:  # whatever a part of somebody's own does without memory
        return None
    return [*reports.metrics, *reports.losses, *(name for row in settled for name in row)]
