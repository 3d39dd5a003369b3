"""Populations: runs that continue as clones of better ones, with changed values.

evolve(Population("config:base", space("tag:LearningRate=log(1e-5,1e-1)"), size=8,
                  objective="validation/loss"), RayRunner(gpus=1))
"""

import math
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from optuna.distributions import FloatDistribution

from fidgpt.compose.catalogue import call_with
from fidgpt.compose.directives import split_directive, takes_numbers
from fidgpt.compose.runs import build_trainer
from fidgpt.graph import ConfigError
from fidgpt.graph.errors import at, raise_all
from fidgpt.graph.expressions import Call, parse_call
from fidgpt.graph.permissions import allowed_changes
from fidgpt.sweep.search import Searched
from fidgpt.sweep.spaces import Points, Space
from fidgpt.train.device import derive_seed

_LOOKS = 10  # by default


def read_pbt(text: str) -> tuple[int, int | None]:
    """Parse `pbt:8`, or `pbt(population=8,every=100)`: the size, and steps between two looks.

    Raises:
      ConfigError: the text is neither.
    """
    name, colon, size = text.partition(":")
    call = Call(name.strip(), [size.strip()], {}) if colon and size else parse_call(text)
    if call.name != "pbt" or not (call.positional or call.named):
        raise ConfigError(
            f"--search={text} needs the number of runs: write --search=pbt:8, or "
            "--search='pbt(population=8,every=100)'."
        )
    with at(f"--search={text:.80}"):
        return call_with(_sizes, call)


def _sizes(population: int, every: int | None = None) -> tuple[int, int | None]:
    return population, every


class Population(Searched):
    """A set of runs that are compared every so many steps.

    At each look, the worst quarter continues as clones of the best quarter, from their checkpoints,
    with values that are somewhat smaller or larger, or drawn again. The result is a schedule of
    values, and a run that followed it.

    Args:
      items: directives such as `config:base`, and spaces at their positions among them; a resumed
        run must be allowed to change what they choose.
      size: the number of runs.
      every: steps between two looks; defaults to a tenth of the run, or the next number of steps
        after which the objective is measured.
      objective: what to minimize, such as `validation/loss`; `max:NAME` maximizes.
      seed: of all random choices: the same command makes the same ones.
      directory: of the population; defaults to `runs/population-...` of these spaces.
      allowed: the user's own packages whose callables a config may name.

    Raises:
      ConfigError: there is no space, or fewer than two runs.
    """

    def __init__(
        self,
        *items: str | Space,
        size: int,
        every: int | None = None,
        objective: str,
        seed: int = 0,
        directory: str | Path | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        settings = {"seed": seed, "directory": directory, "allowed": allowed}
        content = (size, every, seed)
        super().__init__(items, "population", objective=objective, content=content, **settings)
        self.size = size
        self._every = every
        if size < 2:
            raise ConfigError(f"--search=pbt:{size}: a population needs at least two runs.")

    def check(self, points: Points) -> None:
        """Refuse spaces that a resumed run may not change.

        Raises:
          ConfigError: there is one.
        """
        raise_all(
            [
                f"--space={one.text}: a population changes values set by tag: or set: and a plain "
                "=, such as --space='tag:LearningRate=log(1e-4,1e-2)'."
                for one in self.spaces
                if not takes_numbers(split_directive(one.prefix)[0])
                or one.prefix.rstrip("= ").endswith(("*", "+", "-"))
            ]
        )
        try:
            allowed_changes(*points.ends())
        except ConfigError as error:
            raise ConfigError(f"--search=pbt resumes runs with other values:\n{error}") from None

    @cached_property
    def every(self) -> int:
        """Steps between two looks.

        Raises:
          ConfigError: the objective is not measured after as many steps.
        """
        trainer = build_trainer(self.points.ends()[0])
        num_steps, name = trainer.num_steps, self.objective.name
        evaluator = trainer.evaluators.get(name.partition("/")[0])

        def is_measured(step: int) -> bool:
            return evaluator is None or evaluator.due(step, num_steps=num_steps)

        def is_possible(every: int) -> bool:
            return all(is_measured(step) for step in range(every, num_steps, every))

        first = self._every or math.ceil(num_steps / _LOOKS)
        choices = range(first, first + 1 if self._every else num_steps)
        if first < num_steps and (every := next(filter(is_possible, choices), None)) is not None:
            return every
        due = [str(step) for step in range(1, num_steps) if is_measured(step)]
        when = f"after steps {', '.join(due[:3])}, ..." if due else "after the last step"
        raise ConfigError(
            f"--search=pbt(every={first}): {name} is measured {when} of {num_steps}, and must be "
            f"measured every {first} steps: change every, or evaluate more often."
        )

    def config(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values, rounded as directives write them, with all directives."""
        texts = {one.name: one.value_text(values[one.name]) for one in self.spaces}
        return {
            "values": {
                one.name: float(texts[one.name]) if one.values is None else values[one.name]
                for one in self.spaces
            },
            "directives": [
                one if isinstance(one, str) else one.prefix + texts[one.name] for one in self.items
            ],
        }

    def first_configs(self) -> list[dict[str, Any]]:
        """Return the values and directives that each member begins with."""
        numbers = random.Random(derive_seed(self.seed, "population"))
        drawn = [{one.name: draw(one, numbers) for one in self.spaces} for _ in range(self.size)]
        return list(map(self.config, drawn))

    @property
    def summary(self) -> str:
        return f"{self.size} runs, compared every {self.every} steps"


def draw(space: Space, numbers: random.Random) -> Any:
    """Draw a value of a space; uniform in its logarithm for `log`."""
    if space.values is not None:
        return numbers.choice(space.values)
    assert isinstance(space.distribution, FloatDistribution)  # or its values were finite
    low, high = space.distribution.low, space.distribution.high
    if space.distribution.log:
        return math.exp(numbers.uniform(math.log(low), math.log(high)))
    return numbers.uniform(low, high)
