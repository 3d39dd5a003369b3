"""Shards of prepared data."""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.errors import DataError

_BLOCK = 1 << 20


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
    """The smaller of the two ways to write a token id that holds this vocabulary."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class SplitWriter:
    """Writes the documents of one split into shards of about `shard_tokens` tokens.

    A document and the end of text behind it are always in one shard. As a context manager it
    closes the last shard when the block succeeds.

    Args:
      directory: where the shards are.
      split: what they are called.
      dtype: of a token id.
      end_of_text: the id behind each document.
      shard_tokens: at which a shard is full.
      record: an earlier writer's, from which this one goes on; what was written since is removed.
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
        self._directory = directory
        self._split = split
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._end = np.array([end_of_text], dtype=self._dtype).tobytes()
        self._shard_tokens = shard_tokens
        self._open: _OpenShard | None = None
        if record and record["open_documents"]:
            self._begin(tokens=record["open_tokens"], documents=record["open_documents"])
        self._remove_later()

    def add(self, tokens: NDArray[np.uint32], *, num_bytes: int) -> None:
        """Append a document of `num_bytes` bytes of text."""
        shard = self._open or self._begin()
        shard.add(tokens.astype(self._dtype).tobytes() + self._end, tokens=len(tokens) + 1)
        self.num_bytes += num_bytes
        if shard.tokens >= self._shard_tokens:
            self._close_shard()

    def __enter__(self) -> "SplitWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._close_shard()
        elif self._open is not None:
            self._open.abandon()

    @property
    def num_documents(self) -> int:
        """How many were added."""
        finished = sum(shard.documents for shard in self.shards)
        return finished + (self._open.documents if self._open else 0)

    def summary(self) -> dict[str, Any]:
        """What the index says of this split."""
        return {
            "documents": sum(shard.documents for shard in self.shards),
            "tokens": sum(shard.tokens for shard in self.shards),
            "bytes": self.num_bytes,
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
        }

    def record(self) -> dict[str, Any]:
        """All that was added so far, which is on the disk when this returns."""
        if self._open is not None:
            self._open.sync()
        return {
            "bytes": self.num_bytes,
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
            "open_tokens": self._open.tokens if self._open else 0,
            "open_documents": self._open.documents if self._open else 0,
        }

    def _begin(self, *, tokens: int = 0, documents: int = 0) -> "_OpenShard":
        self._open = _OpenShard(
            self._directory / f"{self._split}-{len(self.shards):05d}.bin",
            tokens=tokens,
            documents=documents,
            token_bytes=self._dtype.itemsize,
        )
        return self._open

    def _close_shard(self) -> None:
        if self._open is not None:
            self.shards.append(self._open.close())
            self._open = None

    def _remove_later(self) -> None:
        """Removes shards that an earlier writer began after its record."""
        known = {name for shard in self.shards for name in (shard.file, shard.ends_file)}
        if self._open is not None:
            known |= self._open.names
        for path in self._directory.glob(f"{self._split}-*"):
            if path.name not in known:
                path.unlink()


class _OpenShard:
    """The shard that is written now; what it holds in memory does not grow."""

    def __init__(self, path: Path, *, tokens: int, documents: int, token_bytes: int) -> None:
        self.tokens = tokens
        self.documents = documents
        self._path = path
        sizes = {path: tokens * token_bytes, path.with_suffix(".ends"): documents * 8}
        for file, size in sizes.items():
            if size and (found := file.stat().st_size) < size:
                raise ValueError(f"{file.name} has {found} bytes, and {size} were recorded")
        self._ids, self._ends = (_HashedFile(file, size=size) for file, size in sizes.items())

    @property
    def names(self) -> set[str]:
        return {self._path.name, self._path.with_suffix(".ends").name}

    def add(self, data: bytes, *, tokens: int) -> None:
        self.tokens += tokens
        self.documents += 1
        self._ids.write(data)
        self._ends.write(self.tokens.to_bytes(8, "little"))

    def sync(self) -> None:
        self._ids.sync()
        self._ends.sync()

    def abandon(self) -> None:
        self._ids.abandon()
        self._ends.abandon()

    def close(self) -> Shard:
        return Shard(
            file=self._path.name,
            tokens=self.tokens,
            sha256=self._ids.close(),
            ends_file=self._path.with_suffix(".ends").name,
            documents=self.documents,
            ends_sha256=self._ends.close(),
        )


class _HashedFile:
    """A file that is appended to, and its SHA-256; the first `size` bytes are there already."""

    def __init__(self, path: Path, *, size: int) -> None:
        self._digest = hashlib.sha256()
        self._file = path.open("r+b" if size else "w+b")
        self._file.truncate(size)
        while block := self._file.read(_BLOCK):
            self._digest.update(block)

    def write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def abandon(self) -> None:
        self._file.close()

    def close(self) -> str:
        self.sync()
        self._file.close()
        return self._digest.hexdigest()


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
