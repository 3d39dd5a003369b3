"""Optuna's samplers and pruners, under the names by which a search says them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from optuna import Study, pruners, samplers
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from fidgpt.graph import ConfigError, suggest
from fidgpt.sweep.search.space import Continuous, Space
from fidgpt.train.device import derive_seed

Seeded = Callable[[int], BaseSampler]
HALVING = 3  # of as many points, ASHA lets one go on
RUNGS = 3  # how often it asks


def seeded_sampler(name: str, spaces: Sequence[Space], *, side_by_side: bool) -> Seeded:
    """Makes samplers by their seeds.

    Args:
      name: tpe, random, grid or cmaes.
      spaces: what is chosen.
      side_by_side: whether trials run at the same time, so that a sampler may not take those
        whose value it does not know for good ones.

    Raises:
      ConfigError: there is no such sampler, or it cannot choose of such spaces.
    """
    known: dict[str, Seeded] = {
        "tpe": lambda seed: samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=side_by_side
        ),
        "random": lambda seed: samplers.RandomSampler(seed=seed),
        "grid": lambda _: samplers.GridSampler(grid_of(spaces), seed=0),
        "cmaes": lambda seed: samplers.CmaEsSampler(
            seed=seed,
            independent_sampler=samplers.RandomSampler(seed=seed),
            warn_independent_sampling=False,
        ),
    }
    if name not in known:
        raise ConfigError(f"--search={name} is no sampler. {suggest(name, known)}")
    if name == "grid":
        grid_of(spaces)
    if name == "cmaes" and sum(space.range.values() is None for space in spaces) < 2:
        raise ConfigError(
            "--search=cmaes needs two ranges of numbers at least, such as "
            "--space=tag:LearningRate=log(1e-5,1e-1): say --search=tpe."
        )
    return known[name]


def grid_of(spaces: Sequence[Space]) -> dict[str, list[Any]]:
    """All values of every space.

    Raises:
      ConfigError: those of one cannot be counted.
    """
    grid: dict[str, list[Any]] = {}
    for space in spaces:
        values = space.range.values()
        if values is None:
            call = "log" if isinstance(space.range, Continuous) and space.range.log else "lin"
            raise ConfigError(
                f"--space={space.said} has no end of values, and --search=grid tries all of them: "
                f"say how many, {call}(first, last, count)."
            )
        grid[space.name] = values
    return grid


def size_of_grid(spaces: Sequence[Space]) -> int:
    """How many points a grid has."""
    return math.prod(len(values) for values in grid_of(spaces).values())


class ByTrial(BaseSampler):
    """Chooses for a trial by its number, and by what came of the trials before it.

    So a search that was stopped goes on as if it had not been, and processes that share one do
    not all begin with the same choices.

    Args:
      make: makes a sampler of a seed.
      seed: of the whole search.
    """

    def __init__(self, make: Seeded, *, seed: int) -> None:
        self._make = make
        self._seed = seed
        self._sampler = make(seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._sampler = self._make(derive_seed(self._seed, "search", trial.number) % 2**32)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, Any]
    ) -> dict[str, Any]:
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any
    ) -> Any:
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)


def pruner(name: str | None, *, num_steps: int) -> "BasePruner":
    """What says that a point is not worth going on with.

    Args:
      name: asha or median; None for nothing.
      num_steps: how long a point is trained.

    Raises:
      ConfigError: there is no such rule.
    """
    known: dict[str | None, Callable[[], BasePruner]] = {
        None: pruners.NopPruner,
        "asha": lambda: pruners.SuccessiveHalvingPruner(
            min_resource=max(1, num_steps // HALVING**RUNGS), reduction_factor=HALVING
        ),
        "median": lambda: pruners.MedianPruner(n_warmup_steps=num_steps // 10),
    }
    if name not in known:
        names = [one for one in known if one is not None]
        raise ConfigError(f"--stop={name} is no rule. {suggest(str(name), names)}")
    return known[name]()
