"""A prepared corpus: token ids on disk, in a training and a validation split."""

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from fidgpt.data.errors import DataError
from fidgpt.data.indexed_directory import (
    INDEX,
    VERIFIED_BELOW_BYTES,
    ArrayFile,
    IndexedDirectory,
)
from fidgpt.data.shards import Shard
from fidgpt.data.tokenizers import load_tokenizer

__all__ = ["PreparedCorpus", "Split"]


TOKENIZER = "tokenizer.json"
_ENDS = np.dtype("<u8")


class Split:
    """The documents of the training or the validation split, read from disk on demand.

    Attributes:
      num_documents: number of documents.
      num_tokens: number of tokens, with an end of text after each document.
      num_bytes: number of bytes of their text.
    """

    def __init__(
        self, directory: IndexedDirectory, *, entry: dict[str, Any], dtype: str, vocab_size: int
    ) -> None:
        self.shards = [Shard(**shard) for shard in entry["shards"]]
        self.num_documents: int = entry["documents"]
        self.num_tokens: int = entry["tokens"]
        self.num_bytes: int = entry["bytes"]
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._vocab_size = vocab_size
        self._directory = directory
        if self.num_tokens != sum(shard.tokens for shard in self.shards):
            raise ValueError(f"the shards do not add up to {self.num_tokens} tokens")
        for shard in self.shards:
            directory.check_size(shard.file, size=shard.tokens * self._dtype.itemsize)
            directory.check_size(shard.ends_file, size=shard.documents * _ENDS.itemsize)
        self._tokens = [ArrayFile(directory.path / s.file, self._dtype) for s in self.shards]
        self._ends = [ArrayFile(directory.path / s.ends_file, _ENDS) for s in self.shards]
        self._starts = np.cumsum([0, *(shard.tokens for shard in self.shards)])
        self._first_documents = np.cumsum([0, *(shard.documents for shard in self.shards)])

    def read(self, starts: NDArray[np.int64], *, length: int) -> NDArray[np.int64]:
        """Return rows of `length` tokens that begin at these offsets; a row may cross shards.

        Raises:
          DataError: a shard was truncated or altered since it was opened, or cannot be read.
        """
        rows = np.empty((len(starts), length), dtype=self._dtype)
        numbers = np.searchsorted(self._starts, starts, side="right") - 1
        begins = starts - self._starts[numbers]
        for row, begin, number in zip(rows, begins.tolist(), numbers.tolist(), strict=True):
            while (rest := self.shards[number].tokens - begin) < len(row):
                self._tokens[number].read_into(row[:rest], begin=begin)
                row, begin, number = row[rest:], 0, number + 1
            self._tokens[number].read_into(row, begin=begin)
        self._check_tokens(rows, starts=starts)
        return rows.astype(np.int64)

    def document_bounds(self, *, at_once: int) -> Iterator[NDArray[np.int64]]:
        """Yield the offsets of `at_once` documents or fewer, and of the end of the last one.

        A chunk never spans two shards.

        Raises:
          DataError: a file of offsets was truncated or altered, or cannot be read.
        """
        for start, shard, ends in zip(self._starts.tolist(), self.shards, self._ends, strict=False):
            before = 0
            for first in range(0, shard.documents, at_once):
                last = min(first + at_once, shard.documents)
                behind = ends.read(first, last).astype(np.int64)
                bounds = np.concatenate([[before], behind])
                before = int(behind[-1])
                if (np.diff(bounds) < 1).any() or before > shard.tokens:
                    raise self._directory.damaged(
                        f"{shard.ends_file} was altered: its offsets do not increase"
                    )
                yield bounds + start

    def document(self, number: int) -> NDArray[np.int64]:
        """Return the tokens of a document, with its end of text."""
        if not 0 <= number < self.num_documents:
            raise IndexError(f"document {number} of {self.num_documents}")
        shard = int(np.searchsorted(self._first_documents, number, side="right")) - 1
        within = number - int(self._first_documents[shard])
        begin = int(self._ends[shard].read(within - 1, within)[0]) if within else 0
        stop = int(self._ends[shard].read(within, within + 1)[0])
        start = int(self._starts[shard]) + begin
        return self.read(np.array([start]), length=stop - begin)[0]

    def _check_tokens(self, rows: NDArray[Any], *, starts: NDArray[np.int64]) -> None:
        """Raise DataError if a token id is beyond the vocabulary."""
        if not rows.size or int(rows.max()) < self._vocab_size:
            return
        row, column = divmod(int(rows.argmax()), rows.shape[1])
        shard = int(np.searchsorted(self._starts, starts[row] + column, side="right")) - 1
        raise self._directory.damaged(
            f"{self.shards[shard].file} was altered: it has the token {rows[row, column]}, but the "
            f"tokenizer has only {self._vocab_size} tokens"
        )


class PreparedCorpus:
    """A directory that `Corpus.prepare` wrote.

    Sizes are checked when it is opened, and so are the checksums of a corpus below 256 MB;
    `verify` checks all of them. Raises DataError naming the file that is wrong.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._files = IndexedDirectory(self.directory, kind="prepared corpus", source="source")
        if not is_prepared(self.directory):
            raise DataError(
                f"{directory} is not a prepared corpus: it has no {INDEX}.\n"
                f"Prepare one with: python -m fidgpt.data.prepare --out {directory}"
            )
        index = self._files.read_index()
        with self._files.checking_index():
            self.key: str = index["key"]
            self.dtype: str = index["dtype"]
            self._tokenizer_files: dict[str, str] = index["tokenizer_files"]
            for file, sha256 in self._tokenizer_files.items():
                self._files.check_hash(file, sha256=sha256)
            self.tokenizer = load_tokenizer(self.directory / TOKENIZER)
            self.train, self.validation = (
                Split(
                    self._files,
                    entry=index["splits"][name],
                    dtype=self.dtype,
                    vocab_size=self.tokenizer.vocab_size,
                )
                for name in ("train", "validation")
            )
            if self.num_bytes_on_disk < VERIFIED_BELOW_BYTES:
                self.verify()

    @property
    def num_bytes_on_disk(self) -> int:
        """The size of all token ids."""
        num_tokens = self.train.num_tokens + self.validation.num_tokens
        return num_tokens * np.dtype(self.dtype).itemsize

    @property
    def checksum(self) -> str:
        """A hash of all token ids, document ends and the tokenizer, as 64 hexadecimal digits."""
        parts = [*self._tokenizer_files.values(), self.dtype]
        for split in (self.train, self.validation):
            parts += [f"{shard.sha256} {shard.ends_sha256}" for shard in split.shards] + ["/"]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @functools.cached_property
    def token_bytes(self) -> Int64[Tensor, " vocab"]:
        """The number of UTF-8 bytes that each token stands for; 0 for special tokens."""
        return torch.tensor(self.tokenizer.token_bytes(), dtype=torch.int64)

    def verify(self) -> None:
        """Compare the checksum of every file with the index."""
        for shard in self.train.shards + self.validation.shards:
            self._files.check_hash(shard.file, sha256=shard.sha256)
            self._files.check_hash(shard.ends_file, sha256=shard.ends_sha256)


def is_prepared(directory: Path) -> bool:
    """Return whether a corpus was prepared here; it may still be damaged."""
    return (directory / INDEX).is_file()
