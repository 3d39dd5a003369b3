"""Alignment of the items of two lists."""

import bisect
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

Keys = Sequence[Sequence[Hashable]]  # of each item, the strictest key first


class Pair(NamedTuple):
    """The positions of two items that correspond; None where an item has no partner."""

    old: int | None
    new: int | None
    is_moved: bool = False


def align(old: Keys, new: Keys) -> list[Pair]:
    """Return pairs of positions by the new position; what is gone follows what stood before it.

    Items that agree in their first key are paired first, keeping the order of both lists; between
    these, items that agree in the next key; and so on. The rest of a gap is paired by position if
    the gap is equally long in both lists. Remaining items that agree in their first key have moved.

    Lists of one length whose items agree in their last key are paired by position if that takes no
    more changes: of many equal items, one that differs from the rest did not come from elsewhere.
    """
    aligned = _aligned(old, new)
    if len(old) != len(new) or any(a[-1] != b[-1] for a, b in zip(old, new, strict=True)):
        return aligned
    by_position = [Pair(i, i) for i in range(len(old))]
    return min(by_position, aligned, key=lambda pairs: _num_changes(pairs, old, new))


def _num_changes(pairs: Sequence[Pair], old: Keys, new: Keys) -> int:
    return sum(i is None or j is None or moved or old[i][0] != new[j][0] for i, j, moved in pairs)


def _aligned(old: Keys, new: Keys) -> list[Pair]:
    kept = dict(_pairs([*enumerate(old)], [*enumerate(new)], 0))
    old_of = {j: i for i, j in kept.items()}
    waiting: dict[Hashable, list[int]] = {}
    for i in reversed(range(len(old))):
        if i not in kept:
            waiting.setdefault(old[i][0], []).append(i)
    placed: list[tuple[int, Pair]] = []
    moved: set[int] = set()
    for j, keys in enumerate(new):
        is_moved = j not in old_of and bool(waiting.get(keys[0]))
        i = waiting[keys[0]].pop() if is_moved else old_of.get(j)
        moved |= {i} if is_moved and i is not None else set()
        placed.append((j, Pair(i, j, is_moved)))
    after = -1
    for i in range(len(old)):
        after = kept.get(i, after)
        if i not in kept and i not in moved:
            placed.append((after, Pair(i, None)))
    return [pair for _, pair in sorted(placed, key=lambda place: place[0])]


_Items = list[tuple[int, Sequence[Hashable]]]


def _pairs(old: _Items, new: _Items, level: int) -> list[tuple[int, int]]:
    """Return pairs of positions that rise in both lists, for keys of a level and less strict."""
    if not old or not new:
        return []
    if level == len(old[0][1]):
        same_length = len(old) == len(new)
        return [(i, j) for (i, _), (j, _) in zip(old, new, strict=True)] if same_length else []
    found: list[tuple[int, int]] = []
    i, j = 0, 0
    anchors = _anchors([keys[level] for _, keys in old], [keys[level] for _, keys in new])
    for a, b in [*anchors, (len(old), len(new))]:
        found += _pairs(old[i:a], new[j:b], level + 1)
        found += [(old[a][0], new[b][0])] if a < len(old) else []
        i, j = a + 1, b + 1
    return found


def _anchors(old: list[Hashable], new: list[Hashable]) -> list[tuple[int, int]]:
    """Return positions of equal keys: the common start, the longest rising run, the common end."""
    shorter = min(len(old), len(new))
    start = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    room = shorter - start
    end = next((i for i in range(room) if old[-1 - i] != new[-1 - i]), room)
    middle = _longest_run(old[start : len(old) - end], new[start : len(new) - end])
    return [
        *((i, i) for i in range(start)),
        *((start + i, start + j) for i, j in middle),
        *((len(old) - i, len(new) - i) for i in range(end, 0, -1)),
    ]


def _longest_run(old: list[Hashable], new: list[Hashable]) -> list[tuple[int, int]]:
    """Return the longest run of equal keys that rises in both lists; equal keys are numbered."""
    where = {key: j for j, key in enumerate(_numbered(new))}
    common = [(i, where[key]) for i, key in enumerate(_numbered(old)) if key in where]
    ends: list[int] = []  # the lowest end of a run of each length
    best: list[int] = []  # the pair with that end
    before: list[int | None] = []
    for index, (_, j) in enumerate(common):
        length = bisect.bisect_left(ends, j)
        before.append(best[length - 1] if length else None)
        ends[length : length + 1] = [j]
        best[length : length + 1] = [index]
    run: list[tuple[int, int]] = []
    index = best[-1] if best else None
    while index is not None:
        run.append(common[index])
        index = before[index]
    return run[::-1]


def _numbered(keys: list[Hashable]) -> list[tuple[Hashable, int]]:
    seen: Counter[Hashable] = Counter()
    numbered: list[tuple[Hashable, int]] = []
    for key in keys:
        numbered.append((key, seen[key]))
        seen[key] += 1
    return numbered
