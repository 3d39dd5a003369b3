"""Packing of documents into sequences."""

import bisect
import contextlib
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.errors import DataError
from fidgpt.data.indexed_directory import (
    FORMAT_VERSION,
    INDEX,
    VERIFIED_BELOW_BYTES,
    ArrayFile,
    IndexedDirectory,
    sha256_of,
)
from fidgpt.data.order import count_windows, derive_key, permute
from fidgpt.data.prepared import PreparedCorpus, Split
from fidgpt.data.transforms import mask_loss
from fidgpt.files import atomic_path, only_one, sync, write_whole


@runtime_checkable
class Sequences(Protocol):
    """The training split in sequences, numbered from 0, of which an epoch visits each once."""

    @property
    def num_sequences(self) -> int:
        """How many there are; at least one."""
        ...

    @property
    def checksum(self) -> str:
        """A hash of all tokens and of how they are packed, as 64 hexadecimal digits."""
        ...

    def read(self, numbers: NDArray[np.int64], *, epoch: int) -> NDArray[np.int64]:
        """The sequences with these numbers in an epoch: [len(numbers), seq_len + 1] token ids."""
        ...


@runtime_checkable
class Packing(Protocol):
    """Makes sequences of a corpus; `concatenate` and `best_fit` are two."""

    def __call__(self, corpus: PreparedCorpus, /, *, seq_len: int, seed: int) -> Sequences:
        """The training split in sequences of `seq_len` + 1 tokens.

        Raises:
          DataError: there is less than one sequence.
        """
        ...


def concatenate(corpus: PreparedCorpus, *, seq_len: int, seed: int) -> Sequences:
    """All documents one after the other, cut into windows of `seq_len` inputs and one more token.

    Neighbours share one token, so that in an epoch every token but the first is a target once
    (save a rest shorter than `seq_len`). Windows run on across documents.
    """
    split = corpus.train
    if not count_windows(split, seq_len=seq_len):
        raise DataError(
            f"The corpus is shorter than one sequence: {split.num_tokens} training tokens, and "
            f"seq_len={seq_len} needs {seq_len + 1}.\n"
            "Give more text, or set a smaller seq_len."
        )
    return _Windows(corpus, seq_len=seq_len)


class _Windows:
    """The windows of a split, the same in every epoch."""

    def __init__(self, corpus: PreparedCorpus, *, seq_len: int) -> None:
        self.num_sequences = count_windows(corpus.train, seq_len=seq_len)
        self.checksum = corpus.checksum
        self._split = corpus.train
        self._seq_len = seq_len

    def read(self, numbers: NDArray[np.int64], *, epoch: int) -> NDArray[np.int64]:
        return self._split.read(numbers * self._seq_len, length=self._seq_len + 1)


_PIECES = "pieces.bin"
_AT_ONCE = 1 << 16
_PIECE = np.dtype("<u8")


class Pieces:
    """Where the pieces of each length begin; a document longer than `capacity` is several.

    Attributes:
      counts: number of pieces of each length, [capacity + 1].
      checksum: a hash of all of it, including the tokens.
    """

    def __init__(self, corpus: PreparedCorpus, directory: Path, *, capacity: int) -> None:
        self._directory = IndexedDirectory(directory, kind="packing", source="corpus")
        index = self._directory.read_index()
        with self._directory.checking_index():
            self.counts = np.array(index["counts"], dtype=np.int64)
            words = f"{FORMAT_VERSION} {corpus.checksum} {capacity} {index['sha256']}"
            if index["corpus"] != corpus.checksum or len(self.counts) != capacity + 1:
                raise self._directory.damaged("it belongs to another corpus")
            size = int(self.counts.sum()) * _PIECE.itemsize
            self._directory.check_size(_PIECES, size=size)
            if size < VERIFIED_BELOW_BYTES:
                self._directory.check_hash(_PIECES, sha256=index["sha256"])
        self.checksum = hashlib.sha256(words.encode()).hexdigest()
        self._firsts = np.cumsum(self.counts) - self.counts
        self._pieces = ArrayFile(directory / _PIECES, _PIECE)
        self._num_tokens = corpus.train.num_tokens

    def find(
        self, lengths: NDArray[np.int64], ranks: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the offset of each piece, by length and rank, and whether it continues a document.

        Raises:
          DataError: the file was truncated or altered since it was opened, or cannot be read.
        """
        found = np.empty((len(lengths), 1), dtype=_PIECE)
        for piece, position in zip(found, (self._firsts[lengths] + ranks).tolist(), strict=True):
            self._pieces.read_into(piece, begin=position)
        values = found[:, 0].astype(np.int64)
        starts, continues = values >> 1, (values & 1).astype(bool)
        if (starts + lengths > self._num_tokens).any() or (starts < 0).any():
            raise self._directory.damaged(f"{_PIECES} was altered")
        return starts, continues


def prepare_pieces(corpus: PreparedCorpus, directory: Path, *, capacity: int) -> Pieces:
    """Open the pieces in `directory`, writing them first if missing, in constant memory.

    Raises:
      DataError: they cannot be written, or are damaged.
    """
    if not (directory / INDEX).is_file():
        with _explaining_disk_errors(directory):
            directory.parent.mkdir(parents=True, exist_ok=True)
            with only_one(directory, on_wait=lambda: None):
                if not (directory / INDEX).is_file():
                    with atomic_path(directory) as draft:
                        draft.mkdir()
                        _write_pieces(corpus, draft, capacity=capacity)
    return Pieces(corpus, directory, capacity=capacity)


def _write_pieces(corpus: PreparedCorpus, directory: Path, *, capacity: int) -> None:
    counts = np.zeros(capacity + 1, dtype=np.int64)
    for lengths, _ in _cut(corpus.train, capacity=capacity):
        counts += np.bincount(lengths, minlength=capacity + 1)
    path = directory / _PIECES
    free = np.cumsum(counts) - counts
    # Not through a memory map: if the disk is full, that ends the process by SIGBUS.
    with path.open("wb") as file:
        for lengths, values in _cut(corpus.train, capacity=capacity):
            order = np.argsort(lengths, kind="stable")
            kinds, firsts = np.unique(lengths[order], return_index=True)
            for kind, some in zip(kinds, np.split(values[order], firsts[1:]), strict=True):
                file.seek(int(free[kind]) * _PIECE.itemsize)
                file.write(some.astype(_PIECE).tobytes())
                free[kind] += len(some)
    sync(path)
    index = {
        "version": FORMAT_VERSION,
        "corpus": corpus.checksum,
        "counts": counts.tolist(),
        "sha256": sha256_of(path),
    }
    write_whole(directory / INDEX, json.dumps(index) + "\n")


def _cut(split: Split, *, capacity: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The pieces of some documents at a time, in order: see `_pieces_of`."""
    for bounds in split.document_bounds(at_once=_AT_ONCE):
        pieces = np.cumsum(-(-np.diff(bounds) // capacity))
        parts = np.flatnonzero(np.diff(pieces // _AT_ONCE)) + 1
        for begin, stop in itertools.pairwise([0, *parts.tolist(), len(pieces)]):
            yield _pieces_of(bounds[begin : stop + 1], capacity=capacity)


def _pieces_of(
    bounds: NDArray[np.int64], *, capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The length of each piece, and twice its offset, plus one where it goes on a text."""
    sizes = np.diff(bounds)
    many = -(-sizes // capacity)
    owners = np.repeat(np.arange(len(sizes)), many)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(many) - many, many)
    lengths = np.minimum(sizes[owners] - within * capacity, capacity)
    values = 2 * (bounds[owners] + within * capacity) + (within > 0)
    kept = (lengths > 1) | (within == 0)  # else it is an end of text alone, with no text
    return lengths[kept], values[kept]


@contextlib.contextmanager
def _explaining_disk_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if (directory / INDEX).is_file():  # by another process, on a file system without locks
            return
        raise DataError(
            f"Cannot write the packing to {directory}: {error.strerror or error}.\n"
            "Free some space there, make it writable, or choose another place with "
            "best_fit(cache_dir=...)."
        ) from error


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


def best_fit(
    corpus: PreparedCorpus, *, seq_len: int, seed: int, cache_dir: str | Path | None = None
) -> Sequences:
    """Whole documents, as many as fit into each sequence (Ding et al. 2024, arXiv:2404.10830).

    Only a document of more than `seq_len` tokens, its end of text included, is cut; what is left
    of it is packed like a document. A sequence is an end of text and then documents, each with its
    end of text behind it, so that every document follows one, as `PackedDocuments` has it. What
    stays empty is filled with ends of text. Those are not learned, nor is the first token of a
    text that goes on, which nothing before it foretells.

    Each epoch deals documents of one length anew to the places of that length, and orders those
    of a sequence anew. What is written, 8 bytes a document, is made once for a `seq_len`.

    Args:
      corpus: the text.
      seq_len: inputs of a sequence.
      seed: decides the order.
      cache_dir: where the packing is kept; in the corpus's own directory unless said.

    Raises:
      DataError: there is no document, or the packing cannot be written.
    """
    name = f"best-fit-{seq_len}"
    place = corpus.directory / name
    if cache_dir is not None:
        place = Path(cache_dir).expanduser() / corpus.checksum[:32] / name
    if not corpus.train.num_documents:
        raise DataError("The corpus has no document to learn from.\nGive more text.")
    pieces = prepare_pieces(corpus, place, capacity=seq_len)
    return _Bins(corpus, pieces, seq_len=seq_len, seed=seed)


class _Bins:
    """Sequences that are bins of pieces; those of a group hold pieces of the same lengths."""

    def __init__(self, corpus: PreparedCorpus, pieces: Pieces, *, seq_len: int, seed: int) -> None:
        self.checksum = pieces.checksum
        self._split = corpus.train
        self._pieces = pieces
        self._seq_len = seq_len
        self._seed = seed
        self._end_of_text = corpus.tokenizer.end_of_text
        self._groups = pack(pieces.counts)
        self._first_bins = np.cumsum([0, *(group.num_bins for group in self._groups)])
        self._first_ranks = _first_ranks(self._groups, capacity=seq_len)
        self.num_sequences = int(self._first_bins[-1])

    def read(self, numbers: NDArray[np.int64], *, epoch: int) -> NDArray[np.int64]:
        shape = (len(numbers), self._seq_len + 1)
        rows = mask_loss(np.full(shape, self._end_of_text, dtype=np.int64))
        groups = np.searchsorted(self._first_bins, numbers, side="right") - 1
        for row, number, group in zip(rows, numbers.tolist(), groups.tolist(), strict=True):
            row[0] = self._end_of_text
            self._fill(row[1:], group, number - int(self._first_bins[group]), epoch=epoch)
        return rows

    def _fill(self, row: NDArray[np.int64], group: int, within: int, *, epoch: int) -> None:
        """Writes the pieces of bin `within` of a group."""
        filled = 0
        for start, length, goes_on in self._contents(group, within, epoch=epoch):
            piece = row[filled : filled + length]
            piece[:] = self._split.read(np.array([start]), length=length)[0]
            if goes_on:
                piece[:1] = mask_loss(piece[:1])
            filled += length

    def _contents(self, group: int, within: int, *, epoch: int) -> list[tuple[int, int, bool]]:
        """Offset, length, and whether a text goes on, of each piece of a bin, in their order."""
        kinds = self._groups[group]
        times = np.array(kinds.times)
        lengths = np.repeat(kinds.lengths, times)
        copies = np.arange(len(lengths)) - np.repeat(np.cumsum(times) - times, times)
        ranks = np.repeat(self._first_ranks[group] + within * times, times) + copies
        shifts = _numbers(self._seed, epoch, self._seq_len + 1)[lengths]
        ranks = (ranks + shifts) % self._pieces.counts[lengths]
        starts, goes_on = self._pieces.find(lengths, ranks)
        order = np.argsort(_mixed(starts, salt=int(shifts[0])), kind="stable")
        pieces = zip(starts.tolist(), lengths.tolist(), goes_on.tolist(), strict=True)
        contents = list(pieces)
        return [contents[place] for place in order.tolist()]


def _first_ranks(groups: list[BinGroup], *, capacity: int) -> list[NDArray[np.int64]]:
    """For each group and each of its lengths, how many pieces of it the groups before take."""
    taken = np.zeros(capacity + 1, dtype=np.int64)
    firsts = []
    for group in groups:
        lengths = list(group.lengths)
        firsts.append(taken[lengths])
        taken[lengths] += group.num_bins * np.array(group.times)
    return firsts


@functools.lru_cache(maxsize=8)
def _numbers(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Numbers from 0 to 2**62, by the seed and the epoch: how far the pieces of a length move."""
    data = hashlib.shake_256(derive_key(seed, "best fit", epoch)).digest(8 * count)
    return (np.frombuffer(data, dtype="<u8") >> np.uint64(2)).astype(np.int64)


def _mixed(values: NDArray[np.int64], *, salt: int) -> NDArray[np.uint64]:
    """A hash of each number (the finaliser of SplitMix64; Steele, Lea and Flood, 2014)."""
    mixed = values.astype(np.uint64) + np.uint64(salt)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


_AT_ONCE_OF_SHUFFLED = 1 << 20


def shuffle_and_concatenate(corpus: PreparedCorpus, *, seq_len: int, seed: int) -> Sequences:
    """As `concatenate`, with the documents in another order in each epoch.

    So that in every epoch a document has other neighbours, and is cut at other places. Takes 24
    bytes of memory a document, and a moment where an epoch begins.

    Args:
      corpus: the text.
      seq_len: inputs of a sequence.
      seed: decides the orders.

    Raises:
      DataError: the corpus is shorter than one sequence.
    """
    plain = concatenate(corpus, seq_len=seq_len, seed=seed)
    return _Shuffled(corpus, plain.num_sequences, seq_len=seq_len, seed=seed)


class _Shuffled:
    """Windows over the documents of an epoch."""

    def __init__(
        self, corpus: PreparedCorpus, num_sequences: int, *, seq_len: int, seed: int
    ) -> None:
        self.num_sequences = num_sequences
        self.checksum = hashlib.sha256(f"shuffled {corpus.checksum}".encode()).hexdigest()
        self._split = corpus.train
        self._seq_len = seq_len
        self._seed = seed
        # Of the epoch that is read and, where a batch spans two, of the other one.
        self._stops = functools.lru_cache(maxsize=2)(self._stops_of)

    def read(self, numbers: NDArray[np.int64], *, epoch: int) -> NDArray[np.int64]:
        rows = np.empty((len(numbers), self._seq_len + 1), dtype=np.int64)
        for row, number in zip(rows, numbers.tolist(), strict=True):
            self._fill(row, number * self._seq_len, epoch=epoch)
        return rows

    def _fill(self, row: NDArray[np.int64], start: int, *, epoch: int) -> None:
        """Writes the tokens from place `start` of an epoch on."""
        stops = self._stops(epoch)
        first, last = np.searchsorted(stops, [start, start + len(row) - 1], side="right").tolist()
        filled = 0
        documents = self._documents(first, last + 1, epoch=epoch)
        for place, document in enumerate(documents.tolist(), start=first):
            stop = int(self._bounds[document + 1])
            begin = stop - (int(stops[place]) - start - filled)
            length = min(stop - begin, len(row) - filled)
            row[filled : filled + length] = self._split.read(np.array([begin]), length=length)[0]
            filled += length

    def _documents(self, begin: int, stop: int, *, epoch: int) -> NDArray[np.int64]:
        """The documents at some places of the order of an epoch."""
        key = derive_key(self._seed, "documents", epoch)
        places = np.arange(begin, stop, dtype=np.uint64)
        return permute(places, size=self._split.num_documents, key=key).astype(np.int64)

    def _stops_of(self, epoch: int) -> NDArray[np.int64]:
        """Where each document of an epoch ends in it."""
        count = self._split.num_documents
        sizes = np.empty(count, dtype=np.int64)
        for begin in range(0, count, _AT_ONCE_OF_SHUFFLED):
            documents = self._documents(
                begin, min(begin + _AT_ONCE_OF_SHUFFLED, count), epoch=epoch
            )
            sizes[begin : begin + _AT_ONCE_OF_SHUFFLED] = (
                self._bounds[documents + 1] - self._bounds[documents]
            )
        return np.cumsum(sizes, out=sizes)

    @functools.cached_property
    def _bounds(self) -> NDArray[np.int64]:
        """The offset of each document, and of the end of all."""
        bounds = np.zeros(self._split.num_documents + 1, dtype=np.int64)
        filled = 0
        for some in self._split.document_bounds(at_once=_AT_ONCE_OF_SHUFFLED):
            bounds[filled + 1 : filled + len(some)] = some[1:]
            filled += len(some) - 1
        return bounds
