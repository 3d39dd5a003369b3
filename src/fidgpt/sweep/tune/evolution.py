"""Tune's own population-based training over our spaces: what it mutates, and when it looks."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from fidgpt.sweep.search.space import Continuous, Space
from fidgpt.train.rng import derive_seed


def mutations_of(spaces: Sequence[Space]) -> dict[str, Any]:
    """What Tune may make of each space: a distribution of numbers, or values side by side."""
    from ray import tune

    return {
        one.name: (
            (tune.loguniform if one.range.log else tune.uniform)(one.range.low, one.range.high)
            if isinstance(one.range, Continuous)
            else one.range.values()
        )
        for one in spaces
    }


def distributions_of(spaces: Sequence[Space]) -> dict[str, Any]:
    """What Tune may draw of each space, values side by side being as likely as each other."""
    from ray import tune

    return {
        name: tune.choice(what) if isinstance(what, list) else what
        for name, what in mutations_of(spaces).items()
    }


def first_values(spaces: Sequence[Space], count: int, *, seed: int) -> list[dict[str, Any]]:
    """The values that each member of a population begins with, drawn of its distributions."""
    import numpy as np

    numbers = np.random.default_rng(derive_seed(seed, "population"))
    drawn = distributions_of(spaces)
    return [
        rounded(spaces, {name: one.sample(random_state=numbers) for name, one in drawn.items()})
        for _ in range(count)
    ]


def rounded(spaces: Sequence[Space], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they are said in directives, and so inside their ranges."""
    return {
        one.name: float(one.range.text(values[one.name]))
        if isinstance(one.range, Continuous)
        else values[one.name]
        for one in spaces
    }


def scheduler_of(spaces: Sequence[Space], *, every: int, seed: int) -> Any:
    """Tune's scheduler, which looks at all members together, and mutates by a seed.

    So the same command makes the same choices, and one that was stopped goes on with them.
    """
    from ray.tune.schedulers import PopulationBasedTraining

    class Evolution(PopulationBasedTraining):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            before = random.getstate()
            random.seed(derive_seed(seed, "look", result.get("step", 0)))
            try:
                return super().on_trial_result(tune_controller, trial, result)
            finally:
                random.setstate(before)

        def _quantiles(self) -> tuple[list[Any], list[Any]]:
            """The worst and the best; what failed has no checkpoint to be cloned from."""
            worst, best = super()._quantiles()
            best = [one for one in best if self._trial_state[one].last_score != -math.inf]
            return (worst, best) if best else ([], [])

    return Evolution(
        time_attr="step",
        perturbation_interval=every,
        hyperparam_mutations=mutations_of(spaces),
        custom_explore_fn=lambda values: rounded(spaces, values),
        require_attrs=False,
        synch=True,
        log_config=False,
    )
