"""A population: runs side by side, of which the worse go on as clones of the better."""

import hashlib
import json
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fidgpt.cli.catalogue.calls import call_with
from fidgpt.cli.catalogue.catalogue import own_catalogue
from fidgpt.cli.directives.spelling import split_directive
from fidgpt.cli.running.runs import build_trainer, name_of_base
from fidgpt.graph import ConfigError
from fidgpt.graph.checking.permissions import allowed_changes
from fidgpt.graph.errors import at, raise_all
from fidgpt.graph.typed.calls import Call, parse_call
from fidgpt.sweep.points.axes import NUMBERS
from fidgpt.sweep.results.objective import objective_of
from fidgpt.sweep.results.reportable import refuse_unreportable
from fidgpt.sweep.search.points import Points
from fidgpt.sweep.search.space import Space
from fidgpt.sweep.tune.lineage import Lineage
from fidgpt.sweep.tune.measured import refuse_unmeasured, unmeasured

_LOOKS = 10  # at a population, unless said: a tenth of the run between two
_FILE = "population.json"  # in the directory of one: what its choices depend on


def read_pbt(text: str) -> tuple[int, int | None]:
    """`pbt:8`, or `pbt(population=8,every=100)`: how many runs, and steps between two looks.

    Raises:
      ConfigError: it says something else.
    """
    name, colon, size = text.partition(":")
    call = Call(name.strip(), [size.strip()], {}) if colon and size else parse_call(text)
    if call.name != "pbt" or not (call.positional or call.named):
        raise ConfigError(
            f"--search={text} says not how many runs: write --search=pbt:8, or "
            "--search='pbt(population=8,every=100)'."
        )
    with at(f"--search={text:.80}"):
        return call_with(_sizes, call)


def _sizes(population: int, every: int | None = None) -> tuple[int, int | None]:
    return population, every


class Population:
    """A set of runs that are looked at every so many steps.

    At each look, the worst quarter goes on as clones of the best quarter, from their checkpoints,
    with numbers that are somewhat smaller or larger, or drawn anew. What comes of it is a schedule
    of numbers, and a run that went by it.

    Args:
      items: directives such as `config:base`, and spaces in the places where theirs belong; what
        they choose must be what a run may go on with another of.
      size: how many runs.
      every: steps between two looks; a tenth of the run unless said, where the objective is
        measured then.
      objective: what is to get small, such as `validation/loss`; or large, where it begins with
        `max:`.
      seed: of all that is drawn: the same command makes the same choices.
      directory: where all of it lies; `runs/population-...` of these spaces unless said.
      allowed: packages of the user's own whose callables a config may name.

    Raises:
      ConfigError: there is no space, or too few runs.
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
        self.items = list(items)
        self.spaces = [item for item in items if isinstance(item, Space)]
        self.size = size
        self.objective = objective_of(objective)
        self.seed = seed
        self.allowed = tuple(allowed)
        self._every = every
        if not self.spaces:
            raise ConfigError(
                "a population needs a space: --space='tag:LearningRate=log(1e-4,1e-2)', in quotes."
            )
        if size < 2:
            raise ConfigError(f"--search=pbt:{size}: a population has two runs at least.")
        self.directory = Path(directory or Path("runs") / self._default_name())

    @property
    def said(self) -> dict[str, Any]:
        """All that its choices depend on, in plain values."""
        return {
            "items": [item.said if isinstance(item, Space) else item for item in self.items],
            "objective": self.objective.text,
            "size": self.size,
            "every": self._every,
            "seed": self.seed,
        }

    def _default_name(self) -> str:
        digest = hashlib.sha256(repr(self.said).encode()).hexdigest()[:8]
        base = name_of_base([one for one in self.items if isinstance(one, str)])
        return f"population-{base}-{digest}"

    @cached_property
    def points(self) -> Points:
        """What makes points, looked through for mistakes that all of them would have.

        Raises:
          ConfigError: there is such a mistake, or no run reports the objective, or a run may not
            go on with another value of a space.
        """
        made = Points(self.items, own_catalogue(self.allowed))
        refuse_unreportable(self.objective, made.check())
        raise_all([_refusal(space) for space in self.spaces if not _is_plain(space)])
        try:
            allowed_changes(*made.ends())
        except ConfigError as error:
            raise ConfigError(f"--search=pbt goes on with other values:\n{error}") from None
        return made

    @cached_property
    def every(self) -> int:
        """Steps between two looks.

        Raises:
          ConfigError: the objective is not measured then.
        """
        first, _ = self.points.ends()
        trainer = build_trainer(first)
        if self._every is not None:
            refuse_unmeasured(trainer, self.objective, self._every)
            return self._every
        about = max(1, math.ceil(trainer.num_steps / _LOOKS))
        for every in range(about, trainer.num_steps):
            if unmeasured(trainer, self.objective, every) is None:
                return every
        raise ConfigError(
            f"{self.objective.name} is not measured before the run's last step, "
            f"{trainer.num_steps}: there is nothing to compare a population by on the way."
        )

    @property
    def lineage(self) -> Lineage:
        """Which run was cloned from which, as far as it has come."""
        return Lineage(self.directory)

    def keep(self) -> None:
        """Takes down in the directory whose it is."""
        path = self.directory / _FILE
        if not path.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.said) + "\n", encoding="utf-8")

    def refuse_other(self) -> None:
        """Refuses a directory of another population, whose choices were others.

        Raises:
          ConfigError: it is that.
        """
        path = self.directory / _FILE
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else self.said
        if differing := [name for name in self.said if known.get(name) != self.said[name]]:
            told = "; ".join(
                _difference(name, known.get(name), self.said[name]) for name in differing
            )
            raise ConfigError(
                f"{self.directory} holds another population, {told}: name another --run_dir."
            )

    def __rich__(self) -> RenderableType:
        self.refuse_other()
        lines = [
            f"{self.size} runs, looked at every {self.every} steps, so that {self.objective.aim}, "
            f"in {self.directory}",
            *self.points.moves(),
        ]
        return Group(*map(Text, lines))


def _difference(name: str, there: Any, here: Any) -> str:
    """In what two populations differ, in words."""
    if name != "items":
        first, second = (
            f"{name}={one}" if one is not None else f"no {name}" for one in (there, here)
        )
        return f"with {first} where this one has {second}"
    gone, new = ([one for one in a if one not in b] for a, b in ((there, here), (here, there)))
    if not (gone or new):
        return "with the same directives in another order"
    left, right = (", ".join(map(str, ones)) or "nothing" for ones in (gone, new))
    return f"with {left} where this one has {right}"


def _is_plain(space: Space) -> bool:
    """Whether a value is said as it is, and not as a change of what is there."""
    kind, rest = split_directive(space.prefix)
    return kind in NUMBERS and not rest.rstrip("= ").endswith(("*", "+", "-"))


def _refusal(space: Space) -> str:
    return (
        f"--space={space.said}: a population goes on with other values of what is said by tag: or "
        "set: and a plain =, such as --space='tag:LearningRate=log(1e-4,1e-2)'."
    )
