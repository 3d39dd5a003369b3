"""Delta debugging: the smallest set of differences that still shows what all of them show."""

import enum
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

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
