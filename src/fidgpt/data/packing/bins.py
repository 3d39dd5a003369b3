"""Best-fit-decreasing bin packing of any number of pieces, in the memory of a histogram."""

import bisect
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class BinGroup:
    """Bins that hold the same: of each length, longest first, so many pieces.

    Attributes:
      num_bins: how many there are.
      lengths: of the pieces in one bin, each length once.
      times: how many pieces of that length one bin holds.
    """

    num_bins: int
    lengths: tuple[int, ...] = ()
    times: tuple[int, ...] = ()

    def with_piece(self, length: int, *, times: int, num_bins: int) -> "BinGroup":
        """Some of these bins, with one length more."""
        return BinGroup(num_bins, (*self.lengths, length), (*self.times, times))


def pack(counts: NDArray[np.int64]) -> list[BinGroup]:
    """Bins of capacity `len(counts) - 1` for `counts[length]` pieces of each length.

    The pieces go, longest first, each into the fullest bin that has room for it: the best-fit
    packing of Ding et al. (2024, "Fewer Truncations Improve Language Modeling", arXiv:2404.10830).
    Bins that hold the same are counted, so that time and memory depend on the capacity and not on
    the number of pieces.
    """
    bins = _OpenBins(len(counts) - 1)
    for length in range(len(counts) - 1, 0, -1):
        left = int(counts[length])
        while left:
            left = bins.fill(length, left)
    return bins.groups()


class _OpenBins:
    """Groups of bins by the room that is left in each."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._rooms: list[int] = []
        self._groups: dict[int, list[BinGroup]] = {}

    def fill(self, length: int, count: int) -> int:
        """Puts pieces into the group with the least room for them; returns how many are left.

        A bin that took a piece is the fullest of all, and takes the next one while it has room.
        """
        room, group = self._tightest(length, count)
        each = room // length
        full = min(group.num_bins, count // each)
        count -= full * each
        self._put(group.with_piece(length, times=each, num_bins=full), room - each * length)
        spare = group.num_bins - full
        if spare and count:
            self._put(group.with_piece(length, times=count, num_bins=1), room - count * length)
            spare, count = spare - 1, 0
        if group.lengths:
            self._put(BinGroup(spare, group.lengths, group.times), room)
        return count

    def groups(self) -> list[BinGroup]:
        """All of them, the fullest first."""
        return [group for room in self._rooms for group in self._groups[room]]

    def _tightest(self, length: int, count: int) -> tuple[int, BinGroup]:
        place = bisect.bisect_left(self._rooms, length)
        if place == len(self._rooms):
            return self._capacity, BinGroup(num_bins=count)
        room = self._rooms[place]
        group = self._groups[room].pop()
        if not self._groups[room]:
            del self._groups[room], self._rooms[place]
        return room, group

    def _put(self, group: BinGroup, room: int) -> None:
        if not group.num_bins:
            return
        if room not in self._groups:
            bisect.insort(self._rooms, room)
            self._groups[room] = []
        self._groups[room].append(group)
