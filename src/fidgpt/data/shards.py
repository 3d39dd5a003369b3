"""The files of a corpus while it is written: its shards, and which documents are held out."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.errors import DataError
from fidgpt.files import sha256_of, sync


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of token ids and the file of the offsets behind each of its documents."""

    file: str
    tokens: int
    sha256: str
    ends_file: str
    documents: int
    ends_sha256: str


def token_dtype(vocab_size: int) -> str:
    """Return the smallest dtype that holds the ids of a vocabulary."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class SplitWriter:
    """Writes the documents of one split into shards of about `shard_tokens` tokens.

    A document and its end of text are always in one shard. As a context manager it finishes the
    last shard if the block succeeds.

    Args:
      directory: where the shards are written.
      split: prefix of their names.
      dtype: of a token id.
      end_of_text: the id behind each document.
      shard_tokens: tokens at which a shard is finished.
      record: `record()` of an earlier writer, whose finished shards are kept.
    """

    def __init__(
        self,
        directory: Path,
        *,
        split: str,
        dtype: str,
        end_of_text: int,
        shard_tokens: int,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        self.shards = [Shard(**shard) for shard in record["shards"]] if record else []
        self.num_bytes: int = record["bytes"] if record else 0
        self._finished_bytes = self.num_bytes
        self._directory = directory
        self._split = split
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._end = np.array([end_of_text], dtype=self._dtype).tobytes()
        self._shard_tokens = shard_tokens
        self._open: _OpenShard | None = None

    @property
    def num_finished_documents(self) -> int:
        """Number of documents in finished shards."""
        return sum(shard.documents for shard in self.shards)

    def add(self, tokens: NDArray[np.uint32], *, num_bytes: int) -> bool:
        """Append a document of `num_bytes` bytes of text; return whether that finished a shard."""
        if self._open is None:
            self._open = _OpenShard(self._directory / f"{self._split}-{len(self.shards):05d}.bin")
        self._open.add(tokens.astype(self._dtype).tobytes() + self._end, tokens=len(tokens) + 1)
        self.num_bytes += num_bytes
        if self._open.tokens < self._shard_tokens:
            return False
        self._finish_shard(self._open)
        return True

    def __enter__(self) -> "SplitWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._open is not None and error is None:
            self._finish_shard(self._open)
        elif self._open is not None:
            self._open.close()

    def summary(self) -> dict[str, Any]:
        """Return the entry of this split in the index."""
        tokens = sum(shard.tokens for shard in self.shards)
        return {"documents": self.num_finished_documents, "tokens": tokens, **self.record()}

    def record(self) -> dict[str, Any]:
        """Return what a later writer needs to continue after the finished shards."""
        shards = [dataclasses.asdict(shard) for shard in self.shards]
        return {"bytes": self._finished_bytes, "shards": shards}

    def _finish_shard(self, shard: "_OpenShard") -> None:
        self.shards.append(shard.finish())
        self._finished_bytes = self.num_bytes
        self._open = None


class _OpenShard:
    """The shard that is being written."""

    def __init__(self, path: Path) -> None:
        self.tokens = self.documents = 0
        self._path, self._ends_path = path, path.with_suffix(".ends")
        self._ids, self._ends = path.open("wb"), self._ends_path.open("wb")

    def add(self, data: bytes, *, tokens: int) -> None:
        self.tokens += tokens
        self.documents += 1
        self._ids.write(data)
        self._ends.write(self.tokens.to_bytes(8, "little"))

    def close(self) -> None:
        self._ids.close()
        self._ends.close()

    def finish(self) -> Shard:
        self.close()
        sync(self._path)
        sync(self._ends_path)
        return Shard(
            file=self._path.name,
            tokens=self.tokens,
            sha256=sha256_of(self._path),
            ends_file=self._ends_path.name,
            documents=self.documents,
            ends_sha256=sha256_of(self._ends_path),
        )


_HASH_RANGE = 1 << 64


def document_hash(data: bytes) -> int:
    """Return a 64-bit hash of a document's bytes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


@dataclasses.dataclass(frozen=True)
class Survey:
    """What one reading of a corpus finds out.

    Attributes:
      num_documents: number of documents.
      num_bytes: number of bytes of their text.
      held_out_below: a document is held out if its hash is below this.
      sample: training documents to train the tokenizer on.
    """

    num_documents: int
    num_bytes: int
    held_out_below: int
    sample: list[str]

    def is_held_out(self, data: bytes) -> bool:
        """Return whether the document with these bytes is in the validation split."""
        return document_hash(data) < self.held_out_below


def survey(
    documents: Iterable[str],
    *,
    validation_fraction: float,
    sample_bytes: int,
    on_document: Callable[[int], None],
) -> Survey:
    """Read every document once.

    The sample of up to `sample_bytes` bytes is chosen by hash, and so is independent of the order.
    Of at least two different documents at least one is held out, and one is not, unless
    `validation_fraction` is 0 or 1.
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
        raise DataError("The corpus holds no text at all.\nCheck the path of the source.")
    if below == _HASH_RANGE:  # all held out; the tokenizer is trained on them too
        return Survey(num_documents, num_bytes, below, sample.texts(not_below=0))
    if below and smallest < largest:
        below = min(max(below, smallest + 1), largest)
    elif below:
        below = 0
    return Survey(num_documents, num_bytes, below, sample.texts(not_below=below))


class _Sample:
    """The documents with the largest hashes, as many as fit."""

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
        """Return the training documents in the order of their hashes."""
        return [text for value, _, text in sorted(self._held) if value >= not_below]
