"""When a run measures an objective, and whether it does at all: known before it is trained."""

import torch

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


def refuse_unreported(trainer: Trainer, objective: Objective) -> None:
    """Refuses a number without a slash that neither the trainer nor a part of the model tells.

    What is measured under a name such as `moe/load_max`, the first look at a population shows.

    Args:
      trainer: as it is built without memory.
      objective: what is to be compared.

    Raises:
      ConfigError: no step has such a number.
    """
    if "/" in objective.name or objective.name in _OF_STEPS:
        return
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


def refuse_unmeasured(trainer: Trainer, objective: Objective, every: int) -> None:
    """Refuses steps between two looks after which an objective is not measured.

    Raises:
      ConfigError: there is such a look, or none at all.
    """
    if every < 1 or every >= trainer.num_steps:
        raise ConfigError(
            f"--search=pbt(every={every}): a run has {trainer.num_steps} steps, and is to be "
            "looked at on its way."
        )
    if (step := unmeasured(trainer, objective, every)) is not None:
        raise ConfigError(
            f"--search=pbt(every={every}): {objective.name} is not measured after step {step}. "
            f"{_times(trainer, objective)}"
        )


def unmeasured(trainer: Trainer, objective: Objective, every: int) -> int | None:
    """The first look at which an objective is not measured, if there is one."""
    looks = range(every, trainer.num_steps, every)
    return next((at for at in looks if not _is_due(trainer, objective, at)), None)


def _times(trainer: Trainer, objective: Objective) -> str:
    """When it is measured, and what to do."""
    steps = range(1, trainer.num_steps)
    first = next((at for at in steps if _is_due(trainer, objective, at)), None)
    if first is None:
        return "It is measured after the last step only: let it be measured more often."
    if unmeasured(trainer, objective, first) is None:
        return (
            f"It is measured every {first} steps: say every={first} or a multiple, or let it be "
            "measured more often."
        )
    return (
        f"It is measured after step {first} first, and not at even distances from there: let it be "
        "measured every so many steps."
    )


def _is_due(trainer: Trainer, objective: Objective, step: int) -> bool:
    evaluator = trainer.evaluators.get(objective.name.partition("/")[0])
    return evaluator is None or evaluator.due(step, num_steps=trainer.num_steps)
