"""Packing that cuts no document which fits into a sequence."""

import functools
import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.errors import DataError
from fidgpt.data.packing.bins import BinGroup, pack
from fidgpt.data.packing.packing import Sequences
from fidgpt.data.packing.pieces import Pieces, prepare_pieces
from fidgpt.data.packing.unlearned import unlearned
from fidgpt.data.preparing.prepared import PreparedCorpus
from fidgpt.data.streams.permutation import derive_key


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
        rows = unlearned(np.full(shape, self._end_of_text, dtype=np.int64))
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
                piece[:1] = unlearned(piece[:1])
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
