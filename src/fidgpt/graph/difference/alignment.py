"""Alignment of the items of two lists."""

import itertools
from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher

Keys = Sequence[Sequence[Hashable]]  # of each item, the strictest key first
Pair = tuple[int | None, int | None, bool]  # positions, None without a partner; whether it moved


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
    by_position: list[Pair] = [(i, i, False) for i in range(len(old))]
    return min(by_position, aligned, key=lambda pairs: _num_changes(pairs, old, new))


def _num_changes(pairs: Sequence[Pair], old: Keys, new: Keys) -> int:
    return sum(i is None or j is None or moved or old[i][0] != new[j][0] for i, j, moved in pairs)


def _aligned(old: Keys, new: Keys) -> list[Pair]:
    kept = dict(_pairs(old, new, (0, len(old)), (0, len(new)), 0))
    old_of = {j: i for i, j in kept.items()}
    waiting: dict[Hashable, list[int]] = {}
    for i in reversed(range(len(old))):
        if i not in kept:
            waiting.setdefault(old[i][0], []).append(i)
    placed: list[tuple[int, Pair]] = []
    for j, keys in enumerate(new):
        is_moved = j not in old_of and bool(waiting.get(keys[0]))
        i = waiting[keys[0]].pop() if is_moved else old_of.get(j)
        placed.append((j, (i, j, is_moved)))
    gone, after = {i for found in waiting.values() for i in found}, -1
    for i in range(len(old)):
        after = kept.get(i, after)
        if i in gone:
            placed.append((after, (i, None, False)))
    return [pair for _, pair in sorted(placed, key=lambda place: place[0])]


def _pairs(
    old: Keys, new: Keys, olds: tuple[int, int], news: tuple[int, int], level: int
) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions that rise in both ranges, for keys of a level and less strict."""
    (i, end), (j, stop) = olds, news
    if i == end or j == stop:
        return
    if level == len(old[i]):
        yield from zip(range(i, end), range(j, stop), strict=True) if end - i == stop - j else ()
        return
    a = [keys[level] for keys in old[i:end]]
    b = [keys[level] for keys in new[j:stop]]
    for x, y in [*_matches(a, b), (len(a), len(b))]:
        x, y = olds[0] + x, news[0] + y
        yield from _pairs(old, new, (i, x), (j, y), level + 1)
        if x < end:
            yield x, y
        i, j = x + 1, y + 1


def _matches(old: list[Hashable], new: list[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield positions of equal keys; the common start and end first, as difflib is quadratic."""
    start = _num_common(old, new)
    end = _num_common(old[start:][::-1], new[start:][::-1])
    yield from ((k, k) for k in range(start))
    middle = [keys[start : len(keys) - end] for keys in (old, new)]
    for x, y, size in SequenceMatcher(None, *middle, autojunk=False).get_matching_blocks():
        yield from ((start + x + k, start + y + k) for k in range(size))
    yield from ((k, k - len(old) + len(new)) for k in range(len(old) - end, len(old)))


def _num_common(old: list[Hashable], new: list[Hashable]) -> int:
    same = (a == b for a, b in zip(old, new, strict=False))
    return sum(1 for _ in itertools.takewhile(bool, same))
