"""The differences that a bisection tries."""

import enum
import hashlib
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import fiddle as fdl
from rich.console import Group, RenderableType
from rich.text import Text

from fidgpt.compose.runs import CONSTRAINTS, train_command
from fidgpt.graph import ConfigError, apply_patch, check_and_bind, diff, diff_text
from fidgpt.graph.difference.patches import Patch, patch_of
from fidgpt.sweep.objective import Objective

T = TypeVar("T", bound=Hashable)


class Verdict(enum.Enum):
    """What came of trying a set of differences."""

    BAD = "bad"
    GOOD = "good"
    UNRESOLVED = "unresolved"


FirstBad = Callable[[list[tuple[T, ...]]], tuple[T, ...] | None]


def minimal(pieces: Sequence[T], first_bad: FirstBad[T]) -> tuple[T, ...]:
    """A set of pieces of which none can be left out.

    This is ddmin (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input",
    2002): smaller and smaller parts are tried alone, then all but each of them. One culprit among
    `n` is found in about `2 log2 n` tries; at worst it takes some `n**2`.

    Args:
      pieces: all of them, which together are bad.
      first_bad: tries sets in this order; returns the first that is bad, None if none is.
    """
    left, count = tuple(pieces), 2
    while len(left) > 1:
        parts = _parts(left, count)
        if (smaller := first_bad(parts)) is not None:
            left, count = smaller, 2
            continue
        rests = [tuple(one for one in left if one not in part) for part in parts]
        if count > 2 and (smaller := first_bad(rests)) is not None:
            left, count = smaller, max(2, count - 1)
        elif count < len(left):
            count = min(2 * count, len(left))
        else:
            break
    return left


def together(pieces: Sequence[T], holds: Callable[[tuple[T, ...]], bool]) -> list[tuple[T, ...]]:
    """Pieces in groups: those that do not hold alone go with the fewest others that they need.

    Args:
      pieces: all of them, which hold together.
      holds: whether a set of pieces can stand without the others.
    """
    groups = {piece: (piece,) for piece in pieces}
    for piece in pieces:
        group = groups[piece]
        if holds(group):
            continue
        others = [one for one in pieces if one not in group]
        needed = minimal(others, lambda sets, group=group: _first(sets, group, holds))
        merged = {one for need in needed for one in groups[need]} | set(group)
        joined = tuple(one for one in pieces if one in merged)
        groups |= dict.fromkeys(joined, joined)
    return list(dict.fromkeys(groups.values()))


def _first(
    sets: list[tuple[T, ...]], group: tuple[T, ...], holds: Callable[[tuple[T, ...]], bool]
) -> tuple[T, ...] | None:
    return next((one for one in sets if holds((*group, *one))), None)


def _parts(pieces: tuple[T, ...], count: int) -> list[tuple[T, ...]]:
    """Pieces in `count` parts of nearly one size, in order."""
    ends = [round(i * len(pieces) / count) for i in range(count + 1)]
    return [pieces[begin:end] for begin, end in itertools.pairwise(ends) if begin < end]


@dataclass(frozen=True)
class Bounds:
    """The values of both ends, and the one from which on others are bad.

    Attributes:
      good: of the good end.
      bad: of the bad end; nan where it diverged.
      threshold: from here on, towards the bad end, values are bad; None where nothing is but what
        diverges.
      is_larger_better: which way that is where the bad end diverged.
    """

    good: float
    bad: float
    threshold: float | None
    is_larger_better: bool = False

    def verdict(self, value: float | None) -> Verdict:
        """What a value says; nan is one that diverged, None is that there was none."""
        if value is None:
            return Verdict.UNRESOLVED
        if math.isnan(value):
            return Verdict.BAD
        if self.threshold is None:
            return Verdict.GOOD
        rises = not self.is_larger_better if math.isnan(self.bad) else self.bad > self.good
        is_bad = value >= self.threshold if rises else value <= self.threshold
        return Verdict.BAD if is_bad else Verdict.GOOD


def bounds_of(
    objective: Objective, good: float | None, bad: float | None, threshold: float | None
) -> Bounds:
    """The bounds of two ends; the threshold is half-way between them unless said.

    Raises:
      ConfigError: an end has no value, the good one has less of what is to be large, or the
        threshold does not lie between them.
    """
    name = objective.name
    if good is None or bad is None:
        which = "good" if good is None else "bad"
        raise ConfigError(f"the {which} run came to no {name}: there is nothing to compare.")
    if math.isnan(good):
        raise ConfigError("the good run diverged: exchange the two, if the other one did not.")
    if math.isnan(bad):
        return Bounds(good, bad, threshold, objective.is_larger_better)
    if good == bad:
        raise ConfigError(f"both runs came to one {name}, {good:.6g}: none of them is bad.")
    if objective.is_larger_better and good < bad:
        raise ConfigError(
            f"the good run's {name}, {good:.6g}, is less than the bad one's, {bad:.6g}, and more "
            "of it is better: exchange the two."
        )
    middle = (good + bad) / 2 if threshold is None else threshold
    low, high = sorted((good, bad))
    if not (low < middle < high or middle == bad):
        raise ConfigError(
            f"--threshold={middle:g} does not lie between the good run's {name}, {good:.6g}, "
            f"and the bad one's, {bad:.6g}."
        )
    return Bounds(good, bad, middle, objective.is_larger_better)


Pieces = tuple[str, ...]  # the places of the good graph in which something is changed


class Difference:
    """What makes a bad graph of a good one, in pieces by their places.

    Attributes:
      good: the graph to begin with.
      bad: that in which all pieces are changed.
      pieces: all of them.

    Raises:
      ConfigError: the graphs are the same, or a value has no form in a file.
    """

    def __init__(self, good: fdl.Config, bad: fdl.Config, *, allowed: tuple[str, ...] = ()) -> None:
        self.good = good
        self.bad = bad
        self._allowed = allowed
        self._patch = patch_of(good, bad)
        self.pieces: Pieces = tuple(self._patch.changes)
        if not self.pieces:
            raise ConfigError(
                "the two runs have one and the same config: what differs between them is the "
                "code, the data or the machine; compare their environment.json."
            )

    def applied(self, pieces: Pieces) -> fdl.Config:
        """The good graph in which some pieces are changed.

        Raises:
          ConfigError: they cannot be changed without others.
        """
        if len(pieces) == len(self.pieces):
            return self.bad
        return apply_patch(self.good, self.text(pieces), allowed=self._allowed)

    def text(self, pieces: Pieces) -> str:
        """Some pieces as the text of a patch file."""
        changes = {place: self._patch.changes[place] for place in pieces}
        parts = dict(sorted(self._parts(list(changes.values()))))
        return Patch(changes, parts, self._patch.known).text()

    def _parts(self, todo: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The new parts that some changes put somewhere, with those that these hold."""
        seen: set[str] = set()
        while todo:
            value = todo.pop()
            if isinstance(value, list):
                todo += value
            elif isinstance(value, dict):
                path = value.get("part") if [*value] == ["part"] else None
                if isinstance(path, str) and path not in seen:
                    seen.add(path)
                    todo.append(self._patch.parts[path])
                    yield path, self._patch.parts[path]
                todo += value.values()

    def told(self, pieces: Pieces) -> list[str]:
        """Some pieces for a person, a line each."""
        return diff_text(diff(self.good, self.applied(pieces))).splitlines()

    def groups(self) -> list[Pieces]:
        """The pieces, those together that cannot stand alone."""
        return together(self.pieces, self._holds)

    def _holds(self, pieces: Pieces) -> bool:
        ordered = tuple(one for one in self.pieces if one in set(pieces))
        try:
            check_and_bind(self.applied(ordered), constraints=CONSTRAINTS)
        except ConfigError:
            return False
        return True

    def write(self, pieces: Pieces, directory: Path) -> Path:
        """Writes some pieces as a patch file, called after what is in it; returns its path."""
        text = self.text(pieces)
        path = directory / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.patch"
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


@dataclass(frozen=True)
class Culprits:
    """The smallest set of differences that makes a good run bad.

    Attributes:
      objective: the name of what was measured.
      pieces: the places of the differences.
      told: the differences for a person, a line each.
      num_pieces: among how many they were found.
      value: what the good run came to with them; nan where it diverged.
      bounds: what the two ends came to.
      directives: what makes the good config with these differences and no others.
      cure: what makes the bad config without them; None where that does not check.
      allowed: packages of the user's own that configs may name.
    """

    objective: str
    pieces: Pieces
    told: list[str]
    num_pieces: int
    value: float
    bounds: Bounds
    directives: tuple[str, ...]
    cure: tuple[str, ...] | None
    allowed: tuple[str, ...] = ()

    def text(self) -> str:
        """All of it, for a person."""
        count = len(self.pieces)
        whose = "differences makes" if count == 1 else "differences, only together, make"
        lines = [
            f"{count} of {self.num_pieces} {whose} {self.objective} bad: "
            f"{_number(self.bounds.good)} -> {_number(self.value)} "
            f"(the bad run {_number(self.bounds.bad)}{self._threshold()})",
            *(f"  {line}" for line in self.told),
            "the good run with nothing else changed:",
            f"  {train_command(self.directives, allowed=self.allowed)}",
        ]
        if self.cure:
            cure = train_command(self.cure, allowed=self.allowed)
            lines += ["the bad run without it:", f"  {cure}"]
        return "\n".join(lines)

    def _threshold(self) -> str:
        known = self.bounds.threshold
        return "" if known is None else f", the threshold {_number(known)}"

    def __rich__(self) -> RenderableType:
        return Group(*map(Text, self.text().splitlines()))


def _number(value: float) -> str:
    return "diverged" if math.isnan(value) else f"{value:.4f}"
