"""Files of token ids: how they are written, and what the index says of each."""

import dataclasses
import hashlib
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray


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
    """

    def __init__(
        self, directory: Path, *, split: str, dtype: str, end_of_text: int, shard_tokens: int
    ) -> None:
        self.shards: list[Shard] = []
        self.num_bytes = 0
        self._directory = directory
        self._split = split
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._end = np.array([end_of_text], dtype=self._dtype).tobytes()
        self._shard_tokens = shard_tokens
        self._file = None
        self._digest = hashlib.sha256()
        self._ends: list[int] = []

    def add(self, tokens: NDArray[np.uint32], *, num_bytes: int) -> None:
        """Append a document of `num_bytes` bytes of text."""
        if self._file is None:
            self._file = (self._directory / self._name("bin")).open("wb")
        data = tokens.astype(self._dtype).tobytes() + self._end
        self._file.write(data)
        self._digest.update(data)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(tokens) + 1)
        self.num_bytes += num_bytes
        if self._ends[-1] >= self._shard_tokens:
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
        elif self._file is not None:
            self._file.close()

    def summary(self) -> dict[str, object]:
        """What the index says of this split."""
        return {
            "documents": sum(shard.documents for shard in self.shards),
            "tokens": sum(shard.tokens for shard in self.shards),
            "bytes": self.num_bytes,
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
        }

    def _name(self, suffix: str) -> str:
        return f"{self._split}-{len(self.shards):05d}.{suffix}"

    def _close_shard(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._file = None
        ends = np.array(self._ends, dtype="<u8").tobytes()
        (self._directory / self._name("ends")).write_bytes(ends)
        self.shards.append(
            Shard(
                file=self._name("bin"),
                tokens=self._ends[-1],
                sha256=self._digest.hexdigest(),
                ends_file=self._name("ends"),
                documents=len(self._ends),
                ends_sha256=hashlib.sha256(ends).hexdigest(),
            )
        )
        self._digest = hashlib.sha256()
        self._ends = []
