"""Search spaces and the points in them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import fiddle as fdl
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from fidgpt.compose.catalogue import Catalogue
from fidgpt.compose.directives import assignment
from fidgpt.compose.spelling import split_directive
from fidgpt.graph import ConfigError
from fidgpt.graph.errors import raise_all
from fidgpt.graph.formulas import split_at_commas
from fidgpt.sweep.moves import moves, overwritten, samples_of
from fidgpt.sweep.points import Maker, Point
from fidgpt.sweep.values import ASSIGNED, NUMBERS, Axis, Choice, axis_values

_RANGE = re.compile(r"\s*(lin|log|range)\(([^()]*)\)\s*")
_DIGITS = 5  # of a number, so that one can read and say it again


class Range(Protocol):
    """Values that a sampler may choose of."""

    def distribution(self) -> BaseDistribution:
        """The same for Optuna."""
        ...

    def text(self, value: Any) -> str:
        """A value as it is said in a directive."""
        ...

    def ends(self) -> list[Any]:
        """The first value and the last."""
        ...

    def values(self) -> list[Any] | None:
        """All values; None where they cannot be counted."""
        ...


@dataclass(frozen=True)
class Continuous:
    """Numbers between two, both included; in even steps of their logarithm where `log` says so."""

    low: float
    high: float
    log: bool

    def distribution(self) -> BaseDistribution:
        return FloatDistribution(self.low, self.high, log=self.log)

    def text(self, value: float) -> str:
        return repr(min(self.high, max(self.low, float(f"{value:.{_DIGITS}g}"))))

    def ends(self) -> list[float]:
        return [self.low, self.high]

    def values(self) -> list[float] | None:
        return None


@dataclass(frozen=True)
class Whole:
    """Whole numbers from `low` to `high`, both included, `step` apart."""

    low: int
    high: int
    step: int

    def distribution(self) -> BaseDistribution:
        return IntDistribution(self.low, self.high, step=self.step)

    def text(self, value: int) -> str:
        return str(value)

    def ends(self) -> list[int]:
        return [self.low, self.high]

    def values(self) -> list[int]:
        return list(range(self.low, self.high + 1, self.step))


@dataclass(frozen=True)
class OneOf:
    """One of several texts."""

    choices: tuple[str, ...]

    def distribution(self) -> BaseDistribution:
        return CategoricalDistribution(self.choices)

    def text(self, value: str) -> str:
        return value

    def ends(self) -> list[str]:
        return [self.choices[0], self.choices[-1]]

    def values(self) -> list[str]:
        return list(self.choices)


@dataclass(frozen=True)
class Space:
    """One thing that a search chooses, in the place where its directive belongs among the others.

    Attributes:
      said: how it was said.
      prefix: the directive up to its value.
      range: the values.
    """

    said: str
    prefix: str
    range: Range

    @property
    def name(self) -> str:
        """What the sampler calls it: the directive without its value."""
        return self.prefix.rstrip("=:*+- ")

    def choice(self, value: Any) -> Choice:
        """A value as a directive."""
        return Choice((self.prefix + self.range.text(value),))

    def axis(self) -> Axis:
        """Its two ends as an axis, which moves what the space moves."""
        return Axis(f"--space={self.said}", tuple(map(self.choice, self.range.ends())))


def space(text: str) -> Space:
    """A space: `tag:LearningRate=log(1e-5,1e-1)`, `set:seq_len=range(64,257,64)`, `fiddler:a,b`.

    `lin(0,0.2)` and `log(1e-5,1e-1)` are all numbers between two; `range(64,257,64)` is whole
    numbers, which end before its second; anything else is one of the values of an axis.

    Raises:
      ConfigError: there is nothing to choose.
    """
    kind, rest = split_directive(text)
    if kind in NUMBERS and "=" in rest:
        right = assignment(rest, text)[2]
        values = split_at_commas(right)
        match = _RANGE.fullmatch(values[0]) if len(values) == 1 else None
        found = None if match is None else _range(match[1], match[2], text)
        if found is not None:
            return Space(text, f"{kind}:{rest.removesuffix(right)}", found)
    return _one_of(text)


def _one_of(text: str) -> Space:
    directives = axis_values(text, flag="--space")
    if len(set(directives)) < 2:
        raise ConfigError(
            f"--space={text} is no range: write log(1e-5,1e-1), lin(0,0.2), range(64,513,64) or "
            "several values with commas between them."
        )
    kind, rest = split_directive(directives[0])
    value = assignment(rest, text)[2] if kind in ASSIGNED else rest
    prefix = directives[0].removesuffix(value.strip())
    return Space(text, prefix, OneOf(tuple(one.removeprefix(prefix) for one in directives)))


def _range(kind: str, inside: str, text: str) -> Range | None:
    """The range that a call says; None where it says values one by one, as an axis does."""
    try:
        numbers = [float(one) for one in inside.split(",")]
    except ValueError:
        return None
    if kind == "range":
        return _whole(numbers, text)
    if len(numbers) != 2:
        return None
    low, high = numbers
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"--space={text} is no range: {low:g} is not below {high:g}.")
    if kind == "log" and low <= 0:
        raise ConfigError(f"--space={text} goes through 0: log needs numbers above it.")
    return Continuous(low, high, log=kind == "log")


def _whole(numbers: list[float], text: str) -> Range | None:
    numbers = [*numbers, 1.0] if len(numbers) == 2 else numbers
    if len(numbers) != 3 or any(one != int(one) for one in numbers) or numbers[2] < 1:
        return None
    low, end, step = map(int, numbers)
    if end - 1 - low < step:
        raise ConfigError(
            f"--space={text} is no range: it holds no two whole numbers, as it ends before {end}."
        )
    return Whole(low, low + (end - 1 - low) // step * step, step)


class Points:
    """Makes the points of a search.

    Args:
      items: directives, and spaces in the places where theirs belong among them.
      catalogue: what has a name.

    Attributes:
      spaces: those among the items.
      items: with each space as the axis of its two ends.
    """

    def __init__(self, items: Sequence[str | Space], catalogue: Catalogue) -> None:
        self.spaces = [item for item in items if isinstance(item, Space)]
        self.items = [item.axis() if isinstance(item, Space) else item for item in items]
        self._catalogue = catalogue
        self._maker = Maker(self.items, catalogue)

    def check(self) -> fdl.Config:
        """The graph of a point, after a look for what would be wrong with all of them.

        Raises:
          ConfigErrors: a directive is wrong, or overwrites what a space chooses.
        """
        graph = self._graph(self._at_end(0))
        raise_all(overwritten(list(samples_of(self.items, self._catalogue))))
        return graph

    def moves(self) -> list[str]:
        """A line for each space: how many parameters it moves."""
        return moves(list(samples_of(self.items, self._catalogue)), self._maker.axes)

    def of(self, values: Mapping[str, Any]) -> Point:
        """The point of some values, by the names of their spaces.

        Raises:
          ConfigError, StartError: it does not check.
        """
        return self._point([space.choice(values[space.name]) for space in self.spaces])

    def first(self) -> Point:
        """The point of all first values.

        Raises:
          ConfigError, StartError: it does not check.
        """
        return self._point(self._at_end(0))

    def ends(self) -> tuple[fdl.Config, fdl.Config]:
        """The graphs of all first values, and of all last ones.

        Raises:
          ConfigErrors: a directive is wrong.
        """
        return self._graph(self._at_end(0)), self._graph(self._at_end(-1))

    def num_steps(self) -> int | None:
        """How long a point is trained; None where the first one does not check."""
        try:
            return self.first().cost.num_steps
        except ValueError:
            return None

    def _point(self, chosen: Sequence[Choice]) -> Point:
        return self._maker.point(chosen, self._graph(chosen))

    def _at_end(self, end: int) -> list[Choice]:
        return [axis.choices[end] for axis in self._maker.axes]

    def _graph(self, chosen: Sequence[Choice]) -> fdl.Config:
        draft = self._maker.draft(chosen)
        raise_all(list(draft.mistakes))
        assert draft.root is not None  # or there was a mistake
        return draft.root
