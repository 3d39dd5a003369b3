"""Packing of documents into sequences: concatenation, shuffling, and best fit."""

import bisect
import functools
import hashlib
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.batches import Batch
from fidgpt.data.errors import DataError
from fidgpt.data.order import derive_key, permute
from fidgpt.data.prepared import PreparedCorpus, Split

__all__ = ["Packing", "Sequences", "best_fit", "concatenate", "shuffle_and_concatenate"]


@runtime_checkable
class Sequences(Protocol):
    """The training split as numbered sequences, each visited once per epoch."""

    @property
    def num_sequences(self) -> int:
        """Number of sequences; at least one."""
        ...

    @property
    def checksum(self) -> str:
        """A hash of all tokens and their packing, in 64 hex digits."""
        ...

    def read(self, numbers: NDArray[np.int64], *, epoch: int) -> Batch:
        """Return sequences of an epoch: [len(numbers), seq_len + 1] tokens."""
        ...


@runtime_checkable
class Packing(Protocol):
    """Packs a corpus into sequences: `concatenate`, `shuffle_and_concatenate` or `best_fit`."""

    def __call__(self, corpus: PreparedCorpus, /, *, seq_len: int, seed: int) -> Sequences:
        """Return the training split in sequences of `seq_len` + 1 tokens.

        Raises:
          DataError: the corpus is shorter than one sequence.
        """
        ...


def concatenate(corpus: PreparedCorpus, *, seq_len: int, seed: int) -> Sequences:
    """Concatenate all documents and cut them into windows of `seq_len` + 1 tokens.

    Consecutive windows overlap by one token, so that every token but the first is a target once per
    epoch (except for a remainder shorter than `seq_len`). Windows cross document boundaries.
    """
    windows = Windows(corpus.train, seq_len=seq_len, checksum=corpus.checksum)
    if not windows.num_sequences:
        raise DataError(
            f"The corpus is shorter than one sequence: {corpus.train.num_tokens} training tokens, "
            f"and seq_len={seq_len} needs {seq_len + 1}.\nGive more text, or set a smaller seq_len."
        )
    return windows


class Windows:
    """The windows of a split, the same in every epoch; possibly none."""

    def __init__(self, split: Split, *, seq_len: int, checksum: str = "") -> None:
        self.num_sequences = max(0, (split.num_tokens - 1) // seq_len)
        self.checksum = checksum
        self._split = split
        self._seq_len = seq_len

    def read(self, numbers: NDArray[np.int64], *, epoch: int = 0) -> Batch:
        return self._split.read(numbers * self._seq_len, length=self._seq_len + 1)


DOCUMENTS_AT_ONCE = 1 << 16


def _pieces_of(
    bounds: NDArray[np.int64], *, capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the length of each piece, and 2 * its offset, plus 1 if it continues a document."""
    sizes = np.diff(bounds)
    many = -(-sizes // capacity)
    owners = np.repeat(np.arange(len(sizes)), many)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(many) - many, many)
    lengths = np.minimum(sizes[owners] - within * capacity, capacity)
    values = 2 * (bounds[owners] + within * capacity) + (within > 0)
    kept = (lengths > 1) | (within == 0)  # drop an end of text that has no text
    return lengths[kept], values[kept]


class BinGroup(NamedTuple):
    """Bins with equal contents.

    Attributes:
      num_bins: number of bins.
      lengths: distinct lengths of the pieces in one bin, longest first.
      times: number of pieces of each length in one bin.
    """

    num_bins: int
    lengths: tuple[int, ...] = ()
    times: tuple[int, ...] = ()


def pack(counts: NDArray[np.int64]) -> list[BinGroup]:
    """Pack `counts[length]` pieces of each length into bins of capacity `len(counts) - 1`.

    Best-fit decreasing: from the longest piece to the shortest, each goes into the fullest bin that
    has room for it (Ding et al. 2024, "Fewer Truncations Improve Language Modeling",
    arXiv:2404.10830). Bins with equal contents are counted, so that time and memory depend on the
    capacity, not on the number of pieces. The fullest bins come first.
    """
    capacity = len(counts) - 1
    rooms: list[int] = []  # free space of the bins so far, ascending
    groups: dict[int, list[BinGroup]] = {}

    def put(group: BinGroup, room: int) -> None:
        if group.num_bins:
            if room not in groups:
                bisect.insort(rooms, room)
            groups.setdefault(room, []).append(group)

    for length in range(capacity, 0, -1):
        count = int(counts[length])
        while count:
            at = bisect.bisect_left(rooms, length)
            room, group = capacity, BinGroup(count)
            if at < len(rooms):
                room = rooms[at]
                group = groups[room].pop()
                if not groups[room]:
                    del groups[room], rooms[at]
            # A bin that just received a piece is the fullest one, so it gets more while it has
            # room.
            each = room // length
            full = min(group.num_bins, count // each)
            some = count - full * each if full < group.num_bins else 0
            for times, bins in ((each, full), (some, min(some, 1))):
                filled = BinGroup(bins, (*group.lengths, length), (*group.times, times))
                put(filled, room - times * length)
            if group.lengths:
                put(group._replace(num_bins=group.num_bins - full - min(some, 1)), room)
            count -= full * each + some
    return [group for room in rooms for group in groups[room]]


def best_fit(corpus: PreparedCorpus, *, seq_len: int, seed: int) -> Sequences:
    """Pack whole documents into sequences by best fit (Ding et al. 2024, arXiv:2404.10830).

    Only documents longer than `seq_len` tokens, including the end-of-text token, are split; the
    pieces are packed like documents. A sequence is an end-of-text token followed by documents, each
    with its own, so that every document follows one, as `PackedDocuments` expects. The rest is
    padded with end-of-text tokens. Padding does not count in the loss, nor in statistics of tokens
    such as the load of experts. The first token of a continued document, which has no context, does
    not count in the loss either, nor does the first token of any document if the tokenizer has
    another token in front of texts, or none.

    Each epoch permutes the documents of equal length, and the order within each sequence. Takes 8
    bytes of memory per document, and four times as many at the start.

    Args:
      corpus: the text.
      seq_len: input tokens of a sequence, which holds one more.
      seed: seed of the order.

    Raises:
      DataError: there are no documents.
    """
    if not corpus.train.num_documents:
        left_out = "; ".join(f"{n:,} {event}" for event, n in corpus.train.events.items())
        reason = f": {left_out}. Set a larger seq_len, or give" if left_out else ".\nGive"
        raise DataError(f"The corpus has no documents to train on{reason} more text.")
    return _Bins(corpus, seq_len=seq_len, seed=seed)


class _Bins:
    """Sequences that are bins of pieces; bins of one group hold pieces of the same lengths."""

    def __init__(self, corpus: PreparedCorpus, *, seq_len: int, seed: int) -> None:
        chunks = corpus.train.document_bounds(at_once=DOCUMENTS_AT_ONCE)
        cut = (_pieces_of(bounds, capacity=seq_len) for bounds in chunks)
        lengths, values = map(np.concatenate, zip(*cut, strict=True))
        self._pieces = values[np.argsort(lengths, kind="stable")]
        self._counts = np.bincount(lengths, minlength=seq_len + 1)  # of pieces of each length
        self._first_pieces = np.cumsum(self._counts) - self._counts
        words = f"best fit {corpus.checksum} {seq_len}"
        self.checksum = hashlib.sha256(words.encode()).hexdigest()
        self._split = corpus.train
        self._seq_len = seq_len
        self._seed = seed
        self._end_of_text = corpus.tokenizer.end_of_text
        # Where it is in front of documents, it is what their first token is predicted from.
        self._counts_first = corpus.tokenizer.begin_of_text == self._end_of_text
        self._groups = pack(self._counts)
        self._first_bins = np.cumsum([0, *(group.num_bins for group in self._groups)])
        self._first_ranks = _first_ranks(self._groups, capacity=seq_len)
        self.num_sequences = int(self._first_bins[-1])

    def read(self, numbers: NDArray[np.int64], *, epoch: int) -> Batch:
        shape = (len(numbers), self._seq_len + 1)
        tokens, counted = np.full(shape, self._end_of_text), np.zeros(shape, dtype=np.bool_)
        counted[:, 0] = True
        real = np.ones_like(counted)
        groups = np.searchsorted(self._first_bins, numbers, side="right") - 1
        within = numbers - self._first_bins[groups]
        for row, (group, number) in enumerate(zip(groups.tolist(), within.tolist(), strict=True)):
            filled = 1
            for start, length, continues in self._contents(group, number, epoch=epoch):
                place = row, slice(filled, filled + length)
                piece = self._split.read(np.array([start]), length=length)
                tokens[place] = piece.tokens.numpy()[0]
                counted[place] = True if piece.counted is None else piece.counted.numpy()[0]
                counted[row, filled] &= self._counts_first and not continues
                filled += length
            if filled < shape[1]:  # no document begins at the last end of text
                real[row, filled - 1 :] = False
        return Batch.of(tokens, counted, real)

    def _contents(self, group: int, within: int, *, epoch: int) -> list[tuple[int, int, bool]]:
        """Return the offset and length of each piece, and whether it continues a document."""
        kinds = self._groups[group]
        times = np.array(kinds.times)
        lengths = np.repeat(kinds.lengths, times)
        copies = np.arange(len(lengths)) - np.repeat(np.cumsum(times) - times, times)
        ranks = np.repeat(self._first_ranks[group] + within * times, times) + copies
        shifts = _rotations(self._seed, epoch, self._seq_len + 1)[lengths]
        places = self._first_pieces[lengths] + (ranks + shifts) % self._counts[lengths]
        values = self._pieces[places]
        starts, continues = values >> 1, (values & 1).astype(bool)
        order = np.argsort(_mixed(starts, salt=int(shifts[0])), kind="stable")
        columns = (starts[order].tolist(), lengths[order].tolist(), continues[order].tolist())
        return list(zip(*columns, strict=True))


def _first_ranks(groups: list[BinGroup], *, capacity: int) -> list[NDArray[np.int64]]:
    """Return, for each group, how many pieces of each of its lengths earlier groups use."""
    taken = np.zeros(capacity + 1, dtype=np.int64)
    firsts = []
    for group in groups:
        lengths = list(group.lengths)
        firsts.append(taken[lengths])
        taken[lengths] += group.num_bins * np.array(group.times)
    return firsts


@functools.lru_cache(maxsize=8)
def _rotations(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Return the rotation of the pieces of each length in an epoch, from 0 to 2**62."""
    data = hashlib.shake_256(derive_key(seed, "best fit", epoch)).digest(8 * count)
    return (np.frombuffer(data, dtype="<u8") >> np.uint64(2)).astype(np.int64)


def _mixed(values: NDArray[np.int64], *, salt: int) -> NDArray[np.uint64]:
    """Return a hash of each number (the finalizer of SplitMix64; Steele, Lea and Flood, 2014)."""
    mixed = values.astype(np.uint64) + np.uint64(salt)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def shuffle_and_concatenate(corpus: PreparedCorpus, *, seq_len: int, seed: int) -> Sequences:
    """Concatenate as `concatenate` does, with documents in a new random order in each epoch.

    Documents then have different neighbors in each epoch, and are cut at different positions. Takes
    24 bytes of memory per document, and at the start of an epoch some time and as much again.

    Args:
      corpus: the text.
      seq_len: input tokens of a sequence, which holds one more.
      seed: seed of the orders.

    Raises:
      DataError: the corpus is shorter than one sequence.
    """
    plain = concatenate(corpus, seq_len=seq_len, seed=seed)
    return _Shuffled(corpus, plain.num_sequences, seq_len=seq_len, seed=seed)


class _Shuffled:
    """Windows over the shuffled documents of an epoch."""

    def __init__(
        self, corpus: PreparedCorpus, num_sequences: int, *, seq_len: int, seed: int
    ) -> None:
        self.num_sequences = num_sequences
        self.checksum = hashlib.sha256(f"shuffled {corpus.checksum}".encode()).hexdigest()
        self._split = corpus.train
        self._bounds = corpus.train.bounds()
        self._seq_len = seq_len
        self._seed = seed
        # Two, because a batch may span two epochs.
        self._stops = functools.lru_cache(maxsize=2)(self._stops_of)

    def read(self, numbers: NDArray[np.int64], *, epoch: int) -> Batch:
        window, stops, rows = self._seq_len + 1, self._stops(epoch), []
        for start in (numbers * self._seq_len).tolist():
            ends = [start, start + window - 1]
            first, last = np.searchsorted(stops, ends, side="right").tolist()
            filled, pieces = 0, []
            documents = self._documents(first, last + 1, epoch=epoch)
            for position, document in enumerate(documents.tolist(), start=first):
                stop = int(self._bounds[document + 1])
                begin = stop - (int(stops[position]) - start - filled)
                length = min(stop - begin, window - filled)
                pieces.append(self._split.read(np.array([begin]), length=length))
                filled += length
            rows.append(Batch.cat(pieces, dim=1))
        return Batch.cat(rows)

    def _documents(self, begin: int, stop: int, *, epoch: int) -> NDArray[np.int64]:
        """Return the documents at these positions of the order of an epoch."""
        key = derive_key(self._seed, "documents", epoch)
        positions = np.arange(begin, stop, dtype=np.uint64)
        return permute(positions, size=self._split.num_documents, key=key).astype(np.int64)

    def _stops_of(self, epoch: int) -> NDArray[np.int64]:
        """Return the end offset of each document in the order of an epoch."""
        order = self._documents(0, self._split.num_documents, epoch=epoch)
        return np.cumsum(np.diff(self._bounds)[order])
