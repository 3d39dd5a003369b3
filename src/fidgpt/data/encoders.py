"""Parallel tokenization of documents, in order, by threads."""

import collections
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from fidgpt.data.documents import Document, EncodedDocument, encode_document
from fidgpt.data.tokenizers import Tokenizer

# Bytes per batch; at this size the cost of passing a batch to a thread is negligible.
BATCH_SIZE = 128 * 1024


class SplitDocument(NamedTuple):
    """A document of a corpus.

    Attributes:
      document: the document.
      num_bytes: the number of bytes of its text in UTF-8.
      split: index of the split that it belongs to.
    """

    document: Document
    num_bytes: int
    split: int


_Encoded = list[tuple[SplitDocument, EncodedDocument]]


def encode_all(
    documents: Iterable[SplitDocument], tokenizer: Tokenizer, *, num_workers: int
) -> Iterator[tuple[SplitDocument, EncodedDocument]]:
    """Yield the documents and their tokens, in order."""

    def encode(batch: list[SplitDocument]) -> _Encoded:
        return [(item, encode_document(item.document, tokenizer)) for item in batch]

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
    for item in documents:
        batch.append(item)
        size += item.num_bytes
        if size >= BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
