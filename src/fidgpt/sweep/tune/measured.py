"""When a run measures an objective: known before it is trained."""

from fidgpt.graph import ConfigError
from fidgpt.sweep.results.objective import Objective
from fidgpt.train import Trainer


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
