"""The first reading of a corpus: how much it is, what is held out, what to learn from."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable

from fidgpt.data.errors import DataError

_HASH_RANGE = 1 << 64


def document_hash(data: bytes) -> int:
    """A number below 2**64 that depends on nothing but the document's bytes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


@dataclasses.dataclass(frozen=True)
class Survey:
    """A document is held out if its hash is below `held_out_below`."""

    num_documents: int
    num_bytes: int
    held_out_below: int
    sample: list[str]

    def is_held_out(self, data: bytes) -> bool:
        """Whether the document with these bytes is on the validation side."""
        return document_hash(data) < self.held_out_below


def survey(
    documents: Iterable[str],
    *,
    validation_fraction: float,
    sample_bytes: int,
    on_document: Callable[[int], None],
) -> Survey:
    """Read every document once.

    `sample` holds training documents of up to `sample_bytes` bytes, chosen by their hash, so it
    does not depend on their order. Two different documents are enough for one to be held out.
    """
    num_documents = num_bytes = 0
    below = int(validation_fraction * _HASH_RANGE)
    smallest, largest = _HASH_RANGE, -1
    sample = _Sample(sample_bytes)
    for text in documents:
        data = text.encode()
        value = document_hash(data)
        num_documents += 1
        num_bytes += len(data)
        smallest, largest = min(smallest, value), max(largest, value)
        sample.add(text, size=len(data), value=value)
        on_document(len(data))
    if num_documents == 0:
        raise DataError("The corpus holds no text at all.\nCheck the path that the source names.")
    if below == _HASH_RANGE:  # all of them, of which a tokenizer learns as well
        return Survey(num_documents, num_bytes, below, sample.texts(not_below=0))
    if below and smallest < largest:
        below = min(max(below, smallest + 1), largest)
    elif below:
        below = 0
    return Survey(num_documents, num_bytes, below, sample.texts(not_below=below))


class _Sample:
    """Documents whose hash is above a bar that rises whenever they grow too many."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bar = 0 if max_bytes else _HASH_RANGE
        self._held: list[tuple[int, int, str]] = []
        self._bytes = 0

    def add(self, text: str, *, size: int, value: int) -> None:
        if value < self._bar:
            return
        self._held.append((value, size, text))
        self._bytes += size
        while self._bytes > self._max_bytes and len(self._held) > 1:
            self._bar += (_HASH_RANGE - self._bar) // 8
            self._held = [item for item in self._held if item[0] >= self._bar]
            self._bytes = sum(size for _, size, _ in self._held)

    def texts(self, *, not_below: int) -> list[str]:
        """The documents in the order of their hashes, those on the validation side left out."""
        return [text for value, _, text in sorted(self._held) if value >= not_below]
