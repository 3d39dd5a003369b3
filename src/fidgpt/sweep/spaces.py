"""Search spaces, and the samplers and pruners of Optuna that search them."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna import distributions, pruners, samplers
from optuna.trial import FrozenTrial

from fidgpt.compose.directives import split_directive, takes_numbers
from fidgpt.graph import ConfigError, suggest
from fidgpt.graph.expressions import split_at_commas
from fidgpt.sweep.axes import Axis, Choice, axis_values, split_value
from fidgpt.train.device import derive_seed

_RANGE = re.compile(r"\s*(lin|log|range)\(([^()]*)\)\s*")
_DIGITS = 5  # significant digits of a float, so that a directive stays readable
Distribution = (
    distributions.FloatDistribution
    | distributions.IntDistribution
    | distributions.CategoricalDistribution
)


@dataclass(frozen=True)
class Space:
    """One value that a search chooses, at the position of its directive among the others.

    Attributes:
      text: the space as the user wrote it.
      prefix: the directive up to its value.
      distribution: the values, as Optuna describes them.
    """

    text: str
    prefix: str
    distribution: Distribution

    @property
    def name(self) -> str:
        """The directive without its value, which identifies the space in a study."""
        return self.prefix.rstrip("=:*+- ")

    @property
    def values(self) -> list[Any] | None:
        """All values, or None for a continuous range."""
        match self.distribution:
            case distributions.IntDistribution(low=low, high=high, step=step):
                return list(range(low, high + 1, step))
            case distributions.CategoricalDistribution(choices=choices):
                return list(choices)
        return None

    def choice(self, value: Any) -> Choice:
        """Return a value as a directive; a float is rounded, inside its range."""
        if isinstance(self.distribution, distributions.FloatDistribution):
            low, high = self.distribution.low, self.distribution.high
            value = repr(min(high, max(low, float(f"{value:.{_DIGITS}g}"))))
        return Choice((f"{self.prefix}{value}",))

    def axis(self) -> Axis:
        """Return the first and last value as an axis, which affects the same parameters."""
        values = self.values
        if isinstance(self.distribution, distributions.FloatDistribution):
            values = [self.distribution.low, self.distribution.high]
        assert values  # of all other distributions
        return Axis(f"--space={self.text}", (self.choice(values[0]), self.choice(values[-1])))


def space(text: str) -> Space:
    """Parse a space: `tag:LearningRate=log(1e-5,1e-1)`, `set:seq_len=range(64,257,64)`.

    `lin(0,0.2)` and `log(1e-5,1e-1)` include both ends; `range(64,257,64)` holds integers and
    excludes its end; anything else lists values as an axis does, such as `fiddler:a,b`.

    Raises:
      ConfigError: there is nothing to choose from.
    """
    kind, rest = split_directive(text)
    if takes_numbers(kind) and "=" in rest:
        prefix, right = split_value(text)
        values = split_at_commas(right)
        match = _RANGE.fullmatch(values[0]) if len(values) == 1 else None
        found = None if match is None else _range(match[1], match[2], text)
        if found is not None:
            return Space(text, prefix.lstrip(), found)
    directives = axis_values(text, flag="--space")
    if len(set(directives)) < 2:
        raise ConfigError(
            f"--space={text} has a single value: write log(1e-5,1e-1), lin(0,0.2), "
            "range(64,513,64) or several values separated by commas."
        )
    prefix = split_value(directives[0])[0]
    choices = tuple(one.removeprefix(prefix) for one in directives)
    return Space(text, prefix, distributions.CategoricalDistribution(choices))


def _range(kind: str, inside: str, text: str) -> Distribution | None:
    """Return the range of a call, or None if the call lists values as on an axis."""
    try:
        numbers = [float(one) for one in inside.split(",")]
    except ValueError:
        return None
    if kind == "range":
        numbers = [*numbers, 1.0] if len(numbers) == 2 else numbers
        if len(numbers) != 3 or any(one != int(one) for one in numbers) or numbers[2] < 1:
            return None
        first, end, step = map(int, numbers)
        last = first + (end - 1 - first) // step * step
        if last <= first:
            raise ConfigError(f"--space={text} holds fewer than two integers before {end}.")
        return distributions.IntDistribution(first, last, step=step)
    if len(numbers) != 2:
        return None
    low, high = numbers
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"--space={text}: {low:g} must be below {high:g}.")
    if kind == "log" and low <= 0:
        raise ConfigError(f"--space={text}: log needs numbers above 0.")
    return distributions.FloatDistribution(low, high, log=kind == "log")


MakeSampler = Callable[[int], samplers.BaseSampler]


def sampler_factory(name: str, spaces: Sequence[Space], *, parallel: bool) -> MakeSampler:
    """Return a function that makes a sampler from a seed.

    Args:
      name: tpe, random, grid or cmaes.
      spaces: what is chosen.
      parallel: whether trials run at the same time, so that a sampler must not take trials whose
        value is unknown for good ones.

    Raises:
      ConfigError: there is no such sampler, or it cannot sample these spaces.
    """
    known: dict[str, MakeSampler] = {
        "tpe": lambda seed: samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=parallel
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
        raise ConfigError(f"--search={name}: there is no such sampler. {suggest(name, known)}")
    if name == "grid":
        grid_of(spaces)
    if name == "cmaes" and sum(space.values is None for space in spaces) < 2:
        raise ConfigError(
            "--search=cmaes needs at least two continuous ranges, such as "
            "--space=tag:LearningRate=log(1e-5,1e-1): use --search=tpe."
        )
    return known[name]


def grid_of(spaces: Sequence[Space]) -> dict[str, list[Any]]:
    """Return all values of every space by its name.

    Raises:
      ConfigError: a space is continuous.
    """
    grid: dict[str, list[Any]] = {}
    for one in spaces:
        if one.values is None:
            raise ConfigError(
                f"--space={one.text} is continuous, and --search=grid tries all values: add their "
                "count, as in log(first, last, count)."
            )
        grid[one.name] = one.values
    return grid


class SamplerPerTrial(samplers.BaseSampler):
    """Samples by the number of the trial and the results before it.

    So a search that was stopped continues as if it had not been, and processes that share a study
    do not begin with the same choices.

    Args:
      make: makes a sampler from a seed.
      seed: the seed of the search.
    """

    def __init__(self, make: MakeSampler, *, seed: int) -> None:
        self._make = make
        self._seed = seed
        self._sampler = make(seed)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._sampler = self._make(derive_seed(self._seed, "search", trial.number) % 2**32)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Any, trial: Any, param_name: str, param_distribution: Any
    ) -> Any:
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)


_HALVING, _RUNGS = 3, 3  # of that many points ASHA continues one; how often it decides


def pruner(name: str | None, *, num_steps: int) -> pruners.BasePruner:
    """Return the rule that stops points early.

    Args:
      name: asha or median; None to stop none.
      num_steps: the steps of a point.

    Raises:
      ConfigError: there is no such rule.
    """
    if name is None:
        return pruners.NopPruner()
    if name == "median":
        return pruners.MedianPruner(n_warmup_steps=num_steps // 10)
    if name == "asha":
        first = max(1, num_steps // _HALVING**_RUNGS)
        return pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=_HALVING)
    raise ConfigError(f"--stop={name}: there is no such rule. {suggest(name, ('asha', 'median'))}")
