"""A corpus on the disk, opened for reading: its index, its splits, its tokenizer."""

import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from fidgpt.data.errors import DataError
from fidgpt.data.preparing.shards import Shard
from fidgpt.data.tokenizers.tokenizer_files import load_tokenizer

FORMAT_VERSION = 1
INDEX = "index.json"
TOKENIZER = "tokenizer.json"
# Hashing runs at 0.5 to 2 GB/s, so a corpus below this is checked whole in a fraction of a second.
VERIFIED_BELOW_BYTES = 256 * 1024 * 1024


class Split:
    """The documents of one side, one after the other, read through the memory map.

    `num_documents`, `num_tokens` (an end of text after each document included) and `num_bytes`
    of their text.
    """

    def __init__(self, directory: Path, *, entry: dict[str, Any], dtype: str) -> None:
        self.shards = [Shard(**shard) for shard in entry["shards"]]
        self.num_documents: int = entry["documents"]
        self.num_tokens: int = entry["tokens"]
        self.num_bytes: int = entry["bytes"]
        kind = np.dtype(dtype).newbyteorder("<")
        if self.num_tokens != sum(shard.tokens for shard in self.shards):
            raise ValueError(f"the shards do not add up to {self.num_tokens} tokens")
        for shard in self.shards:
            _check_size(directory, shard.file, size=shard.tokens * kind.itemsize)
            _check_size(directory, shard.ends_file, size=shard.documents * 8)
        # A plain array over the map: slicing a np.memmap costs several times as much.
        self._tokens = [_map(directory / shard.file, kind) for shard in self.shards]
        self._ends = [_map(directory / shard.ends_file, np.dtype("<u8")) for shard in self.shards]
        self._starts = np.cumsum([0, *(shard.tokens for shard in self.shards)])
        self._first_documents = np.cumsum([0, *(shard.documents for shard in self.shards)])

    def read(self, starts: NDArray[np.int64], *, length: int) -> NDArray[np.int64]:
        """Rows of `length` tokens that begin at these offsets; a row may cross shards."""
        rows = np.empty((len(starts), length), dtype=np.int64)
        numbers = np.searchsorted(self._starts, starts, side="right") - 1
        for row, start, number in zip(rows, starts.tolist(), numbers.tolist(), strict=True):
            filled = 0
            while filled < length:
                begin = start + filled - int(self._starts[number])
                piece = self._tokens[number][begin : begin + length - filled]
                row[filled : filled + len(piece)] = piece
                filled += len(piece)
                number += 1
        return rows

    def document_bounds(self, *, at_once: int) -> Iterator[NDArray[np.int64]]:
        """The offsets between documents in order, [documents + 1] of at most `at_once` documents.

        Those of a shard begin with the offset at which it begins.
        """
        for start, ends in zip(self._starts.tolist(), self._ends, strict=False):
            before = start
            for first in range(0, len(ends), at_once):
                behind = ends[first : first + at_once].astype(np.int64) + start
                yield np.concatenate([[before], behind])
                before = int(behind[-1])

    def document(self, number: int) -> NDArray[np.int64]:
        """The tokens of a document, its end of text included."""
        if not 0 <= number < self.num_documents:
            raise IndexError(f"document {number} of {self.num_documents}")
        shard = int(np.searchsorted(self._first_documents, number, side="right")) - 1
        within = number - int(self._first_documents[shard])
        begin = int(self._ends[shard][within - 1]) if within else 0
        return self._tokens[shard][begin : int(self._ends[shard][within])].astype(np.int64)


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
            self.train = self._split("train")
            self.validation = self._split("validation")
            for file, sha256 in self._index["tokenizer_files"].items():
                _check_hash(self.directory, file, sha256=sha256)
            if self.num_bytes_on_disk < VERIFIED_BELOW_BYTES:
                self.verify()
        except DataError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"its {INDEX} lacks an entry or has a wrong one ({error})"
            raise _damaged(self.directory, reason) from error
        self.tokenizer = load_tokenizer(self.directory / TOKENIZER)

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
        return Split(self.directory, entry=entry, dtype=self._index["dtype"])


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
        f"Delete it (rm -r {directory}) and start again; it is prepared anew from the source."
    )


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
