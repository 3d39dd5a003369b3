"""Parallel tokenization of documents, in order, by threads."""

import collections
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.tokenizers import Tokenizer

# Characters per batch; at this size the cost of passing a batch to a thread is negligible.
BATCH_SIZE = 128 * 1024


class SplitDocument(NamedTuple):
    """A document of a corpus.

    Attributes:
      text: its text.
      num_bytes: the number of bytes of the text in UTF-8.
      split: index of the split that the document belongs to.
    """

    text: str
    num_bytes: int
    split: int


_Encoded = list[tuple[SplitDocument, NDArray[np.uint32]]]


def encode_all(
    documents: Iterable[SplitDocument], tokenizer: Tokenizer, *, num_workers: int
) -> Iterator[tuple[SplitDocument, NDArray[np.uint32]]]:
    """Yield the documents and their token ids, in order."""

    def encode(batch: list[SplitDocument]) -> _Encoded:
        ids = tokenizer.encode_batch([document.text for document in batch])
        return list(zip(batch, ids, strict=True))

    executor = ThreadPoolExecutor(num_workers, thread_name_prefix="tokenize")
    in_flight: collections.deque[Future[_Encoded]] = collections.deque()
    try:
        for batch in _batches(documents):
            in_flight.append(executor.submit(encode, batch))
            if len(in_flight) > 2 * num_workers:
                yield from in_flight.popleft().result()
        while in_flight:
            yield from in_flight.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


def _batches(documents: Iterable[SplitDocument]) -> Iterator[list[SplitDocument]]:
    batch: list[SplitDocument] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
