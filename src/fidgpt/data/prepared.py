"""A prepared corpus: token ids on disk, in a training and a validation split."""

import copy
import dataclasses
import functools
import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Real
from numpy.typing import NDArray
from torch import Tensor

from fidgpt.data.batches import Batch
from fidgpt.data.documents import EncodedDocument
from fidgpt.data.errors import DataError
from fidgpt.data.indexed_directory import (
    INDEX,
    VERIFIED_BELOW_BYTES,
    ArrayFile,
    IndexedDirectory,
)
from fidgpt.data.tokenizers import load_tokenizer
from fidgpt.files import sha256_of, sync

__all__ = ["PreparedCorpus", "Split"]


TOKENIZER = "tokenizer.json"
SPLITS = ("train", "validation")
_ENDS = np.dtype("<u8")
_CHANGED = "e\u0301\u2581"  # two characters that NFC makes one, and one that may be a space
_AT_ONCE = 1 << 20  # tokens or documents


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of token ids, with a file of its documents' end offsets, and one of its loss mask.

    The mask has a byte for each token, 1 if it counts in the loss; it is None if all tokens do.
    """

    file: str
    tokens: int
    sha256: str
    ends_file: str
    documents: int
    ends_sha256: str
    mask_file: str | None = None
    mask_sha256: str | None = None

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each file by its name."""
        hashes = {self.file: self.sha256, self.ends_file: self.ends_sha256}
        if self.mask_file is not None and self.mask_sha256 is not None:
            hashes[self.mask_file] = self.mask_sha256
        return hashes


class SplitWriter:
    """Writes the documents of one split into shards of about `shard_tokens` tokens.

    A document and its end-of-text token are always in the same shard.

    Args:
      directory: where the shards are written.
      split: prefix of the file names.
      dtype: dtype of token ids.
      end_of_text: id appended to each document.
      shard_tokens: number of tokens from which on a shard is finished.
      record: result of `record()` of an earlier writer, whose finished shards are kept.
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
        record = record or {"bytes": 0, "counted": 0, "dropped": 0, "events": {}}
        # Of the documents so far, with the documents of an unfinished shard and without them.
        self._totals = {name: record[name] for name in ("bytes", "counted", "dropped", "events")}
        self._finished = copy.deepcopy(self._totals)
        self._prefix = directory / split
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._end = np.array([end_of_text], dtype=self._dtype).tobytes()
        self._shard_tokens = shard_tokens
        self._open: list[BinaryIO] = []  # ids, ends, and a mask once a token does not count
        self._tokens = self._documents = 0  # in the open shard

    @property
    def num_finished_documents(self) -> int:
        """Number of documents read for finished shards, dropped ones included."""
        return sum(shard.documents for shard in self.shards) + self._finished["dropped"]

    @property
    def num_bytes(self) -> int:
        """Number of bytes of the documents so far."""
        return self._totals["bytes"]

    def add(self, document: EncodedDocument, *, num_bytes: int) -> bool:
        """Append a document and its end of text; return whether this finished a shard.

        A dropped document is only counted. The end of text counts in the loss as the document
        says, or if its last token does.

        Args:
          document: its tokens.
          num_bytes: number of bytes of their text.
        """
        self._totals["bytes"] += num_bytes
        events = self._totals["events"]
        if document.event:
            events[document.event] = events.get(document.event, 0) + 1
        if document.is_dropped:
            self._totals["dropped"] += 1
            return False
        if not self._open:
            self._open = [self._create("bin"), self._create("ends")]
            self._tokens = self._documents = 0
        ids, ends, *masks = self._open
        ids.write(document.tokens.astype(self._dtype).tobytes() + self._end)
        counted = np.ones(len(document.tokens) + 1, dtype=np.bool_)
        if document.counted is not None and len(document.counted):
            counts_end = document.counts_end
            end = document.counted[-1] if counts_end is None else counts_end
            counted = np.append(document.counted, end)
        if not masks and not counted.all():
            masks = [self._create("mask")]
            masks[0].write(b"\1" * self._tokens)
            self._open += masks
        for mask in masks:
            mask.write(counted.tobytes())
        self._tokens += len(counted)
        self._totals["counted"] += int(counted.sum())
        self._documents += 1
        ends.write(self._tokens.to_bytes(8, "little"))
        if is_full := self._tokens >= self._shard_tokens:
            self.finish_shard()
        return is_full

    def _create(self, suffix: str) -> BinaryIO:
        return Path(f"{self._prefix}-{len(self.shards):05d}.{suffix}").open("wb")

    def finish_shard(self) -> None:
        """Finish the open shard, if there is one."""
        if self._open:
            paths = [Path(file.name) for file in self._open]
            self.close()
            for path in paths:
                sync(path)
            ids, ends, *mask = [(path.name, sha256_of(path)) for path in paths]
            counts = self._tokens, self._documents
            self.shards.append(
                Shard(ids[0], counts[0], ids[1], ends[0], counts[1], ends[1], *sum(mask, ()))
            )
        self._finished = copy.deepcopy(self._totals)

    def close(self) -> None:
        """Close the files of an unfinished shard."""
        for file in self._open:
            file.close()
        self._open = []

    def summary(self) -> dict[str, Any]:
        """Return the entry of this split in the index."""
        tokens = sum(shard.tokens for shard in self.shards)
        documents = sum(shard.documents for shard in self.shards)
        return {"documents": documents, "tokens": tokens, **self.record()}

    def record(self) -> dict[str, Any]:
        """Return the state from which a later writer continues after the finished shards."""
        shards = [dataclasses.asdict(shard) for shard in self.shards]
        return {**self._finished, "shards": shards}


class Split:
    """The documents of the training or the validation split, read from disk on demand.

    Attributes:
      num_documents: number of documents.
      num_tokens: number of tokens, including an end-of-text token per document.
      num_bytes: number of UTF-8 bytes of text.
      num_counted: number of tokens that count in the loss.
      events: number of documents that were shortened or dropped, by the reason.
    """

    def __init__(self, directory: IndexedDirectory, *, entry: dict[str, Any], dtype: str) -> None:
        self.shards = [Shard(**shard) for shard in entry["shards"]]
        self.num_documents: int = entry["documents"]
        self.num_tokens: int = entry["tokens"]
        self.num_bytes: int = entry["bytes"]
        self.num_counted: int = entry["counted"]
        self.events: dict[str, int] = entry["events"]
        self._dtype = np.dtype(dtype).newbyteorder("<")
        for shard in self.shards:
            directory.check_size(shard.file, size=shard.tokens * self._dtype.itemsize)
            directory.check_size(shard.ends_file, size=shard.documents * _ENDS.itemsize)
            if shard.mask_file is not None:
                directory.check_size(shard.mask_file, size=shard.tokens)
        self._tokens = [ArrayFile(directory.path / s.file, self._dtype) for s in self.shards]
        self._ends = [ArrayFile(directory.path / s.ends_file, _ENDS) for s in self.shards]
        masks = [shard.mask_file for shard in self.shards]
        self._masks = [m and ArrayFile(directory.path / m, np.dtype(np.bool_)) for m in masks]
        self._starts = np.cumsum([0, *(shard.tokens for shard in self.shards)])

    def read(self, starts: NDArray[np.int64], *, length: int) -> Batch:
        """Return the rows of tokens at these offsets, [len(starts), length]; they may cross shards.

        Raises:
          DataError: a shard was truncated or altered since it was opened, or cannot be read.
        """
        tokens = np.empty((len(starts), length), dtype=self._dtype)
        counted = np.ones(tokens.shape, dtype=np.bool_) if any(self._masks) else None
        numbers = np.searchsorted(self._starts, starts, side="right") - 1
        begins = (starts - self._starts[numbers]).tolist()
        for row, (begin, number) in enumerate(zip(begins, numbers.tolist(), strict=True)):
            filled = 0
            while filled < length:
                stop = min(filled + self.shards[number].tokens - begin, length)
                place = row, slice(filled, stop)
                self._tokens[number].read_into(tokens[place], begin=begin)
                if counted is not None and (mask := self._masks[number]):
                    mask.read_into(counted[place], begin=begin)
                begin, number, filled = 0, number + 1, stop
        return Batch.of(tokens.astype(np.int64), counted)

    def bounds(self) -> NDArray[np.int64]:
        """Return the start offset of every document, then the end of the last one."""
        chunks = [*self.document_bounds(at_once=_AT_ONCE)]
        return np.concatenate([chunks[0][:1], *(bounds[1:] for bounds in chunks)])

    def document_bounds(self, *, at_once: int) -> Iterator[NDArray[np.int64]]:
        """Yield the start offsets of up to `at_once` documents, then the end of the last one.

        A chunk never spans two shards.

        Raises:
          DataError: an offsets file was truncated, or cannot be read.
        """
        for start, shard, ends in zip(self._starts.tolist(), self.shards, self._ends, strict=False):
            before = 0
            for first in range(0, shard.documents, at_once):
                last = min(first + at_once, shard.documents)
                behind = ends.read(first, last).astype(np.int64)
                bounds = np.concatenate([[before], behind])
                before = int(behind[-1])
                yield bounds + start


class PreparedCorpus:
    """A corpus directory written by `Corpus.prepare`.

    Opening it checks the sizes of all files, and their checksums if it is smaller than 256 MiB;
    `verify` always checks the checksums. A DataError names the damaged file.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._files = IndexedDirectory(self.directory)
        if not self._files.exists:
            raise DataError(
                f"{directory} is not a prepared corpus: it has no {INDEX}.\n"
                f"Prepare one with: python -m fidgpt.data.prepare --out {directory}"
            )
        index = self._files.read_index()
        self.key: str = index["key"]
        self.dtype: str = index["dtype"]
        self._tokenizer_files: dict[str, str] = index["tokenizer_files"]
        for file, sha256 in self._tokenizer_files.items():
            self._files.check_hash(file, sha256=sha256)
        self.tokenizer = load_tokenizer(self.directory / TOKENIZER)
        splits = index["splits"]
        self.train, self.validation = (
            Split(self._files, entry=splits[name], dtype=self.dtype) for name in SPLITS
        )
        if self.num_bytes_on_disk < VERIFIED_BELOW_BYTES:
            self.verify()

    @property
    def num_bytes_on_disk(self) -> int:
        """The size of all token ids, in bytes."""
        num_tokens = self.train.num_tokens + self.validation.num_tokens
        return num_tokens * np.dtype(self.dtype).itemsize

    @property
    def checksum(self) -> str:
        """A hash of all token ids, document ends and the tokenizer, in 64 hex digits."""
        parts = [*self._tokenizer_files.values(), self.dtype]
        for split in (self.train, self.validation):
            parts += [" ".join(shard.hashes().values()) for shard in split.shards] + ["/"]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def of_validation(self) -> "PreparedCorpus":
        """Return a corpus whose training split is the validation split of this one, for packing."""
        corpus = copy.copy(self)
        corpus.train = self.validation
        return corpus

    @functools.cached_property
    def token_bytes(self) -> Real[Tensor, " vocab"]:
        """The number of UTF-8 bytes of each token; 0 for special tokens.

        Where the tokenizer composes characters or puts a space in front of texts, it is that in
        the source of the held-out text, on average.
        """
        sizes = torch.tensor(self.tokenizer.token_bytes(), dtype=torch.int64)
        split, count = self.validation, self.validation.num_tokens
        changes = self.tokenizer.normalize(_CHANGED) != _CHANGED
        is_whole = 0 < count == split.num_counted and not split.events
        if not (changes and is_whole):
            return sizes
        written = 0
        for begin in range(0, count, _AT_ONCE):
            tokens = split.read(np.array([begin]), length=min(_AT_ONCE, count - begin)).tokens
            written += int(sizes[tokens].sum())
        if written == split.num_bytes:
            return sizes
        print(
            f"text: the tokenizer changes characters: {split.num_bytes:,} bytes of the held-out "
            f"text became {written:,}; bits per byte count those of the text.",
            file=sys.stderr,
        )
        return sizes.double() * (split.num_bytes / written)

    def verify(self) -> None:
        """Compare the checksum of every file with the index."""
        for shard in self.train.shards + self.validation.shards:
            for file, sha256 in shard.hashes().items():
                self._files.check_hash(file, sha256=sha256)
