"""Parallel tokenization of documents, in order, by threads."""

import collections
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.tokenizers import Tokenizer

# Characters per batch; at this size the cost of passing a batch to a thread is negligible.
BATCH_SIZE = 128 * 1024


@dataclass(frozen=True)
class Piece:
    """A document, or a piece of one.

    Attributes:
      text: characters of the piece.
      num_bytes: their number in UTF-8.
      split: index of the split that the document belongs to.
      is_last: whether the document ends here.
    """

    text: str
    num_bytes: int
    split: int
    is_last: bool = True


_Encoded = list[tuple[Piece, NDArray[np.uint32]]]


def encode_all(
    pieces: Iterable[Piece], tokenizer: Tokenizer, *, num_workers: int
) -> Iterator[tuple[Piece, NDArray[np.uint32]]]:
    """Yield the pieces and their token ids, in order."""

    def encode(batch: list[Piece]) -> _Encoded:
        ids = tokenizer.encode_batch([piece.text for piece in batch])
        return list(zip(batch, ids, strict=True))

    executor = ThreadPoolExecutor(num_workers, thread_name_prefix="tokenize")
    in_flight: collections.deque[Future[_Encoded]] = collections.deque()
    try:
        for batch in _batches(pieces):
            in_flight.append(executor.submit(encode, batch))
            if len(in_flight) > 2 * num_workers:
                yield from in_flight.popleft().result()
        while in_flight:
            yield from in_flight.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
