"""Packing that puts the documents in a new order in each epoch."""

import functools
import hashlib

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.packing.packing import Sequences, concatenate
from fidgpt.data.preparing.prepared import PreparedCorpus
from fidgpt.data.streams.permutation import derive_key, permute

_AT_ONCE = 1 << 20


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
        for begin in range(0, count, _AT_ONCE):
            documents = self._documents(begin, min(begin + _AT_ONCE, count), epoch=epoch)
            sizes[begin : begin + _AT_ONCE] = self._bounds[documents + 1] - self._bounds[documents]
        return np.cumsum(sizes, out=sizes)

    @functools.cached_property
    def _bounds(self) -> NDArray[np.int64]:
        """The offset of each document, and of the end of all."""
        bounds = np.zeros(self._split.num_documents + 1, dtype=np.int64)
        filled = 0
        for some in self._split.document_bounds(at_once=_AT_ONCE):
            bounds[filled + 1 : filled + len(some)] = some[1:]
            filled += len(some) - 1
        return bounds
