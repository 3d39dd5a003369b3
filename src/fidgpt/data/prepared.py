"""Prepared data."""

import functools
import hashlib
import json
import os
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from fidgpt.data.errors import DataError, removal
from fidgpt.data.shards import Shard
from fidgpt.data.tokenizers import load_tokenizer

# Below what macOS lets a process open, with room for everything else.
_MOST_OPEN = 128


class ArrayFile:
    """Numbers of one type in a file, which is opened when it is first read.

    Of many files only some stay open: the one that was opened first is closed, and opened again
    when it is next read.

    Not a memory map: where a file is cut short or its disk fails, a map ends the process by
    SIGBUS. Reading by position costs about half a microsecond more for a sequence, and lets other
    threads run while the disk is waited for.

    Args:
      path: of the file.
      dtype: of a number.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.path = path
        self._dtype = dtype
        self._descriptor: _Descriptor | None = None

    def read(self, begin: int, stop: int) -> NDArray[Any]:
        """The numbers from place `begin` to before `stop`; raises DataError as `read_into`."""
        numbers = np.empty(stop - begin, dtype=self._dtype)
        self.read_into(numbers, begin=begin)
        return numbers

    def read_into(self, numbers: NDArray[Any], *, begin: int) -> None:
        """Fills an array of the file's kind with the numbers from place `begin` on.

        Raises:
          DataError: the file ends before, or cannot be read.
        """
        offset = begin * self._dtype.itemsize
        try:
            descriptor = self._descriptor or self._open()
            done = os.preadv(descriptor.number, [numbers.data], offset)
            while done < numbers.nbytes:  # the kernel may give less than is there
                rest = numbers.view(np.uint8).data[done:]
                more = os.preadv(descriptor.number, [rest], offset + done)
                if not more:
                    size = os.fstat(descriptor.number).st_size
                    raise self._unreadable(f"it ends after {size} bytes")
                done += more
        except OSError as error:
            raise self._unreadable(error.strerror or str(error)) from error

    def _open(self) -> "_Descriptor":
        self._descriptor = descriptor = _Descriptor(self.path)
        _OPEN.append(weakref.ref(self))
        while len(_OPEN) > _MOST_OPEN:
            oldest = _OPEN.popleft()()
            if oldest is not None:
                oldest._descriptor = None
        return descriptor

    def _unreadable(self, reason: str) -> DataError:
        return DataError(
            f"{self.path} was whole and cannot be read any more: {reason}.\n"
            "Bring it back and go on; or delete the folder that it is in and start again, so that "
            "it is made anew from the source."
        )


class _Descriptor:
    """An open file, until the last of those who read it lets it go."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.number).atexit = False


_OPEN: deque[weakref.ref[ArrayFile]] = deque()


FORMAT_VERSION = 1
INDEX = "index.json"
TOKENIZER = "tokenizer.json"
# Hashing runs at 0.5 to 2 GB/s, so a corpus below this is checked whole in a fraction of a second.
VERIFIED_BELOW_BYTES = 256 * 1024 * 1024
_ENDS = np.dtype("<u8")


class Split:
    """The documents of one side, one after the other, read from the disk as they are asked for.

    `num_documents`, `num_tokens` (an end of text after each document included) and `num_bytes`
    of their text.
    """

    def __init__(
        self, directory: Path, *, entry: dict[str, Any], dtype: str, vocab_size: int
    ) -> None:
        self.shards = [Shard(**shard) for shard in entry["shards"]]
        self.num_documents: int = entry["documents"]
        self.num_tokens: int = entry["tokens"]
        self.num_bytes: int = entry["bytes"]
        self._kind = kind = np.dtype(dtype).newbyteorder("<")
        self._vocab_size = vocab_size
        self._directory = directory
        if self.num_tokens != sum(shard.tokens for shard in self.shards):
            raise ValueError(f"the shards do not add up to {self.num_tokens} tokens")
        for shard in self.shards:
            _check_size(directory, shard.file, size=shard.tokens * kind.itemsize)
            _check_size(directory, shard.ends_file, size=shard.documents * 8)
        self._tokens = [ArrayFile(directory / shard.file, kind) for shard in self.shards]
        self._ends = [ArrayFile(directory / shard.ends_file, _ENDS) for shard in self.shards]
        self._starts = np.cumsum([0, *(shard.tokens for shard in self.shards)])
        self._first_documents = np.cumsum([0, *(shard.documents for shard in self.shards)])

    def read(self, starts: NDArray[np.int64], *, length: int) -> NDArray[np.int64]:
        """Rows of `length` tokens that begin at these offsets; a row may cross shards.

        Raises:
          DataError: a shard was cut short or altered since it was opened, or cannot be read.
        """
        rows = np.empty((len(starts), length), dtype=self._kind)
        numbers = np.searchsorted(self._starts, starts, side="right") - 1
        begins = starts - self._starts[numbers]
        for row, begin, number in zip(rows, begins.tolist(), numbers.tolist(), strict=True):
            while (rest := self.shards[number].tokens - begin) < len(row):
                self._tokens[number].read_into(row[:rest], begin=begin)
                row, begin, number = row[rest:], 0, number + 1
            self._tokens[number].read_into(row, begin=begin)
        self._refuse_unknown(rows, starts=starts)
        return rows.astype(np.int64)

    def document_bounds(self, *, at_once: int) -> Iterator[NDArray[np.int64]]:
        """The offsets between documents in order, [documents + 1] of at most `at_once` documents.

        Those of a shard begin with the offset at which it begins.

        Raises:
          DataError: a file of offsets was cut short or altered, or cannot be read.
        """
        for start, shard, ends in zip(self._starts.tolist(), self.shards, self._ends, strict=False):
            before = 0
            for first in range(0, shard.documents, at_once):
                last = min(first + at_once, shard.documents)
                behind = ends.read(first, last).astype(np.int64)
                bounds = np.concatenate([[before], behind])
                before = int(behind[-1])
                if (np.diff(bounds) < 1).any() or before > shard.tokens:
                    reason = f"{shard.ends_file} was altered: its documents do not follow another"
                    raise _damaged(self._directory, reason)
                yield bounds + start

    def document(self, number: int) -> NDArray[np.int64]:
        """The tokens of a document, its end of text included."""
        if not 0 <= number < self.num_documents:
            raise IndexError(f"document {number} of {self.num_documents}")
        shard = int(np.searchsorted(self._first_documents, number, side="right")) - 1
        within = number - int(self._first_documents[shard])
        begin = int(self._ends[shard].read(within - 1, within)[0]) if within else 0
        stop = int(self._ends[shard].read(within, within + 1)[0])
        start = int(self._starts[shard]) + begin
        return self.read(np.array([start]), length=stop - begin)[0]

    def _refuse_unknown(self, rows: NDArray[Any], *, starts: NDArray[np.int64]) -> None:
        """Raises DataError where there is a token that the tokenizer has not."""
        if not rows.size or int(rows.max()) < self._vocab_size:
            return
        row, column = divmod(int(rows.argmax()), rows.shape[1])
        shard = int(np.searchsorted(self._starts, starts[row] + column, side="right")) - 1
        raise _damaged(
            self._directory,
            f"{self.shards[shard].file} was altered: it has a token {rows[row, column]}, and the "
            f"tokenizer only {self._vocab_size} tokens",
        )


class PreparedCorpus:
    """A directory that `prepare_corpus` wrote.

    Sizes are checked when it is opened, and so are the checksums of a corpus below 256 MB;
    `verify` checks all of them. Raises DataError, naming the file that is wrong.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._index = _read_index(self.directory)
        try:
            self.key: str = self._index["key"]
            self.dtype: str = self._index["dtype"]
            for file, sha256 in self._index["tokenizer_files"].items():
                _check_hash(self.directory, file, sha256=sha256)
            self.tokenizer = load_tokenizer(self.directory / TOKENIZER)
            self.train = self._split("train")
            self.validation = self._split("validation")
            if self.num_bytes_on_disk < VERIFIED_BELOW_BYTES:
                self.verify()
        except DataError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"its {INDEX} lacks an entry or has a wrong one ({error})"
            raise _damaged(self.directory, reason) from error

    @property
    def num_bytes_on_disk(self) -> int:
        """The size of all token ids."""
        num_tokens = self.train.num_tokens + self.validation.num_tokens
        return num_tokens * np.dtype(self.dtype).itemsize

    @property
    def checksum(self) -> str:
        """A hash of all token ids, document ends and the tokenizer, as 64 hexadecimal digits."""
        parts = [*self._index["tokenizer_files"].values(), self.dtype]
        for split in (self.train, self.validation):
            parts += [f"{shard.sha256} {shard.ends_sha256}" for shard in split.shards] + ["/"]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @functools.cached_property
    def token_bytes(self) -> Int64[Tensor, " vocab"]:
        """The number of UTF-8 bytes that each token stands for; 0 for special tokens."""
        return torch.tensor(self.tokenizer.token_bytes(), dtype=torch.int64)

    def verify(self) -> None:
        """Read every file and compare its checksum with the index."""
        for shard in self.train.shards + self.validation.shards:
            _check_hash(self.directory, shard.file, sha256=shard.sha256)
            _check_hash(self.directory, shard.ends_file, sha256=shard.ends_sha256)

    def _split(self, name: str) -> Split:
        entry = self._index["splits"][name]
        return Split(
            self.directory,
            entry=entry,
            dtype=self._index["dtype"],
            vocab_size=self.tokenizer.vocab_size,
        )


def is_prepared(directory: Path) -> bool:
    """Whether a corpus was prepared here; it may still be damaged."""
    return (directory / INDEX).is_file()


def _read_index(directory: Path) -> dict[str, Any]:
    path = directory / INDEX
    try:
        index: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(
            f"{directory} holds no prepared corpus: it has no {INDEX}.\n"
            f"Prepare one with: python -m fidgpt.data.prepare --out {directory}"
        ) from error
    except (OSError, ValueError) as error:
        raise _damaged(directory, f"its {INDEX} cannot be read ({error})") from error
    version = index.get("version") if isinstance(index, dict) else None
    if version != FORMAT_VERSION:
        raise _damaged(directory, f"its format is version {version}, and not {FORMAT_VERSION}")
    return index


def _check_size(directory: Path, file: str, *, size: int) -> None:
    try:
        found = (directory / file).stat().st_size
    except OSError as error:
        raise _damaged(directory, f"{file} is missing") from error
    if found != size:
        raise _damaged(directory, f"{file} has {found} bytes where the index says {size}")


def _check_hash(directory: Path, file: str, *, sha256: str) -> None:
    try:
        with (directory / file).open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise _damaged(directory, f"{file} cannot be read ({error.strerror})") from error
    if found != sha256:
        raise _damaged(
            directory,
            f"{file} was altered: its SHA-256 is {found[:12]}... where the index says "
            f"{sha256[:12]}...",
        )


def _damaged(directory: Path, reason: str) -> DataError:
    return DataError(
        f"The prepared corpus in {directory} cannot be used: {reason}.\n"
        f"Delete it ({removal(directory)}) and start again; it is prepared anew from the source."
    )
