"""The documents of a split as pieces that fit into a sequence, sorted by length, on the disk."""

import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.errors import DataError, removal
from fidgpt.data.preparing.array_file import ArrayFile
from fidgpt.data.preparing.atomic import new_directory, only_one
from fidgpt.data.preparing.prepared import VERIFIED_BELOW_BYTES, PreparedCorpus, Split

_FORMAT_VERSION = 1
_INDEX = "index.json"
_PIECES = "pieces.bin"
_AT_ONCE = 1 << 16
_KIND = np.dtype("<u8")


class Pieces:
    """Where the pieces of each length begin; a document longer than `capacity` is several.

    Attributes:
      counts: how many pieces there are of each length, [capacity + 1].
      checksum: a hash of all of it, the tokens included.
    """

    def __init__(self, corpus: PreparedCorpus, directory: Path, *, capacity: int) -> None:
        index = _read_index(directory)
        self.counts = np.array(index["counts"], dtype=np.int64)
        words = f"{_FORMAT_VERSION} {corpus.checksum} {capacity} {index['sha256']}"
        self.checksum = hashlib.sha256(words.encode()).hexdigest()
        self._firsts = np.cumsum(self.counts) - self.counts
        path = directory / _PIECES
        if index["corpus"] != corpus.checksum or len(self.counts) != capacity + 1:
            raise _damaged(directory, "it belongs to another text")
        size = int(self.counts.sum()) * _KIND.itemsize
        if _size(path) != size:
            raise _damaged(directory, f"{_PIECES} has not the {size} bytes that {_INDEX} says")
        if size < VERIFIED_BELOW_BYTES and _sha256(path) != index["sha256"]:
            raise _damaged(directory, f"{_PIECES} was altered")
        self._pieces = ArrayFile(path, _KIND)
        self._num_tokens = corpus.train.num_tokens

    def find(
        self, lengths: NDArray[np.int64], ranks: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The offset of a piece by its length and its rank in it, and whether it goes on a text.

        Raises:
          DataError: what was written was cut short or altered since, or cannot be read.
        """
        found = np.empty((len(lengths), 1), dtype=_KIND)
        for piece, place in zip(found, (self._firsts[lengths] + ranks).tolist(), strict=True):
            self._pieces.read_into(piece, begin=place)
        values = found[:, 0].astype(np.int64)
        starts, goes_on = values >> 1, (values & 1).astype(bool)
        if (starts + lengths > self._num_tokens).any() or (starts < 0).any():
            raise _damaged(self._pieces.path.parent, f"{_PIECES} was altered")
        return starts, goes_on


def prepare_pieces(corpus: PreparedCorpus, directory: Path, *, capacity: int) -> Pieces:
    """The pieces in `directory`, written first if they are not there; memory stays constant.

    Raises:
      DataError: they cannot be written, or are damaged.
    """
    if not (directory / _INDEX).is_file():
        with _explaining_disk_errors(directory):
            directory.parent.mkdir(parents=True, exist_ok=True)
            with only_one(directory, on_wait=lambda: None):
                if not (directory / _INDEX).is_file():
                    with new_directory(directory) as unfinished:
                        _write(corpus, unfinished, capacity=capacity)
    return Pieces(corpus, directory, capacity=capacity)


def _write(corpus: PreparedCorpus, directory: Path, *, capacity: int) -> None:
    counts = np.zeros(capacity + 1, dtype=np.int64)
    for lengths, _ in _cut(corpus.train, capacity=capacity):
        counts += np.bincount(lengths, minlength=capacity + 1)
    path = directory / _PIECES
    free = np.cumsum(counts) - counts
    # Not through a memory map: where the disk is full, that one ends the process by SIGBUS.
    with path.open("wb") as file:
        for lengths, values in _cut(corpus.train, capacity=capacity):
            order = np.argsort(lengths, kind="stable")
            kinds, firsts = np.unique(lengths[order], return_index=True)
            for kind, some in zip(kinds, np.split(values[order], firsts[1:]), strict=True):
                file.seek(int(free[kind]) * _KIND.itemsize)
                file.write(some.astype(_KIND).tobytes())
                free[kind] += len(some)
    index = {
        "version": _FORMAT_VERSION,
        "corpus": corpus.checksum,
        "counts": counts.tolist(),
        "sha256": _sha256(path),
    }
    (directory / _INDEX).write_text(json.dumps(index) + "\n", encoding="utf-8")


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


def _read_index(directory: Path) -> dict[str, Any]:
    try:
        index: Any = json.loads((directory / _INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(directory, f"its {_INDEX} cannot be read ({error})") from error
    if not isinstance(index, dict) or index.get("version") != _FORMAT_VERSION:
        raise _damaged(directory, f"its format is not version {_FORMAT_VERSION}")
    counts = index.get("counts")
    if not isinstance(counts, list) or not all(isinstance(count, int) for count in counts):
        raise _damaged(directory, f"its {_INDEX} has no counts of pieces")
    if not {"corpus", "sha256"} <= index.keys():
        raise _damaged(directory, f"its {_INDEX} lacks an entry")
    return index


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _damaged(path.parent, f"{path.name} is missing") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(directory: Path, reason: str) -> DataError:
    return DataError(
        f"The packing in {directory} cannot be used: {reason}.\n"
        f"Delete it ({removal(directory)}) and start again; it is made anew from the corpus."
    )


@contextlib.contextmanager
def _explaining_disk_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"Cannot write the packing to {directory}: {error.strerror or error}.\n"
            "Make room there or make it writable, or name another place: best_fit(cache_dir=...)."
        ) from error
