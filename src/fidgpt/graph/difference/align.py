"""Which item of one list stands for which item of another, when some came, went or moved."""

import bisect
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Pair(NamedTuple, Generic[T]):
    """Two items that stand for each other; None where an item has no partner."""

    old: T | None
    new: T | None
    is_moved: bool = False


Keys = Sequence[Sequence[Hashable]]


def align(old: Keys, new: Keys) -> list[Pair[int]]:
    """Pairs of positions, by the new position; what is gone comes after what stood before it.

    Each item has keys, the strictest first: items that agree in their first key are paired first,
    keeping the order of both lists; between these, items that agree in the next key; and so on.
    What is left in a gap is paired by position if the gap is as long in both lists. Items that are
    left over and agree in their first key have moved, and are paired too.

    Lists of one length whose items agree in their last key are paired by position altogether,
    where that takes no more changes: of many equal items, one that differs from the rest has not
    come anew because another one like it is elsewhere.
    """
    aligned = _aligned(old, new)
    if len(old) != len(new) or any(a[-1] != b[-1] for a, b in zip(old, new, strict=True)):
        return aligned
    by_position = [Pair[int](i, i) for i in range(len(old))]
    return min(by_position, aligned, key=lambda pairs: _num_changes(pairs, old, new))


def _num_changes(pairs: Sequence[Pair[int]], old: Keys, new: Keys) -> int:
    return sum(
        pair.old is None
        or pair.new is None
        or pair.is_moved
        or old[pair.old][0] != new[pair.new][0]
        for pair in pairs
    )


def _aligned(old: Keys, new: Keys) -> list[Pair[int]]:
    levels = len(old[0]) if old else 0
    kept = dict(_pairs(list(enumerate(old)), list(enumerate(new)), level=0, levels=levels))
    taken = set(kept.values())
    old_rest = [i for i in range(len(old)) if i not in kept]
    moved = _moved(old, new, old_rest, [j for j in range(len(new)) if j not in taken])
    partners = {j: i for i, j in (kept | moved).items()}
    placed = [(j, Pair(partners.get(j), j, partners.get(j) in moved)) for j in range(len(new))]
    after = -1
    for i in range(len(old)):
        after = kept.get(i, after)
        if i not in kept and i not in moved:
            placed.append((after, Pair(i, None)))
    return [pair for _, pair in sorted(placed, key=lambda place: place[0])]


def _pairs(
    old: list[tuple[int, Sequence[Hashable]]],
    new: list[tuple[int, Sequence[Hashable]]],
    *,
    level: int,
    levels: int,
) -> list[tuple[int, int]]:
    if not old or not new:
        return []
    if level == levels:
        same_length = len(old) == len(new)
        return [(i, j) for (i, _), (j, _) in zip(old, new, strict=True)] if same_length else []
    found: list[tuple[int, int]] = []
    i, j = 0, 0
    anchors = _anchors([keys[level] for _, keys in old], [keys[level] for _, keys in new])
    for a, b in [*anchors, (len(old), len(new))]:
        found += _pairs(old[i:a], new[j:b], level=level + 1, levels=levels)
        found += [(old[a][0], new[b][0])] if a < len(old) else []
        i, j = a + 1, b + 1
    return found


def _anchors(old: list[Hashable], new: list[Hashable]) -> list[tuple[int, int]]:
    """Positions of equal keys, rising in both lists: the common start, the common end, between."""
    shorter = min(len(old), len(new))
    start = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    room = shorter - start
    end = next((i for i in range(room) if old[-1 - i] != new[-1 - i]), room)
    middle = _rising(old[start : len(old) - end], new[start : len(new) - end])
    return [
        *((i, i) for i in range(start)),
        *((start + i, start + j) for i, j in middle),
        *((len(old) - i, len(new) - i) for i in range(end, 0, -1)),
    ]


def _rising(old: list[Hashable], new: list[Hashable]) -> list[tuple[int, int]]:
    """The longest run of equal keys that rises in both, the n-th of a key standing for the n-th."""
    where = {key: j for j, key in enumerate(_numbered(new))}
    common = [(i, where[key]) for i, key in enumerate(_numbered(old)) if key in where]
    ends: list[int] = []  # the lowest end of a run of each length
    best: list[int] = []  # which pair that is
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


def _numbered(keys: list[Hashable]) -> list[Hashable]:
    seen: Counter[Hashable] = Counter()
    numbered: list[Hashable] = []
    for key in keys:
        numbered.append((key, seen[key]))
        seen[key] += 1
    return numbered


def _moved(old: Keys, new: Keys, old_rest: list[int], new_rest: list[int]) -> dict[int, int]:
    waiting: dict[Hashable, list[int]] = {}
    for i in reversed(old_rest):
        waiting.setdefault(old[i][0], []).append(i)
    return {waiting[new[j][0]].pop(): j for j in new_rest if waiting.get(new[j][0])}
