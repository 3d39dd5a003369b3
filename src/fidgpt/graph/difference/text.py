"""Changes as text."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from fidgpt.graph.difference.changes import Change
from fidgpt.graph.difference.differ import diff
from fidgpt.graph.paths import TEXT

_PIECE = re.compile(rf"{TEXT}|\[(\d+)\]")  # the key of a dict, in which brackets mean nothing
_HOLE = "[\0]"  # no path has this sign: it writes keys as Python does


def diff_text(changes: Iterable[Change]) -> str:
    """A line for each change; a change that many items of a list have in common is one line."""
    groups: dict[tuple[str, str, str], list[tuple[int, ...]]] = {}
    for change in changes:
        pattern = _PIECE.sub(lambda piece: _HOLE if piece[1] else piece[0], change.path)
        indices = tuple(int(index) for index in _PIECE.findall(change.path) if index)
        groups.setdefault((change.sign, pattern, change.detail), []).append(indices)
    lines = [
        f"{sign} {path or 'the root'}: {detail}"
        for (sign, pattern, detail), indices in groups.items()
        for path in _paths(pattern, indices)
    ]
    return "\n".join(lines or ["no difference"]) + "\n"


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers in short: `0, 2-5`."""
    runs: list[list[int]] = []
    for value in sorted(numbers):
        if runs and value == runs[-1][-1] + 1:
            runs[-1][1:] = [value]
        else:
            runs.append([value])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _paths(pattern: str, indices: list[tuple[int, ...]]) -> Iterator[str]:
    """One path for all, where the indices are all combinations of some; else each by itself."""
    columns = [set(column) for column in zip(*indices, strict=True)]
    if math.prod(map(len, columns)) == len(set(indices)) == len(indices):
        yield _filled(pattern, [ranges(column) for column in columns])
    else:
        yield from (_filled(pattern, list(map(str, row))) for row in indices)


def _filled(pattern: str, indices: list[str]) -> str:
    first, *rest = pattern.split(_HOLE)
    return first + "".join(f"[{i}]{text}" for i, text in zip(indices, rest, strict=True))


def since(base: Any, root: Any, *, name: str) -> str:
    """The name of the graph that another began with, and a line for each difference.

    Raises:
      ConfigErrors: one of the graphs cannot be bound.
    """
    changes = diff(base, root)
    if not changes:
        return f"{name}, unchanged\n"
    return f"{name}, but\n{diff_text(changes)}"
