"""The directory of a prepared corpus: array files with an index.json, written once and verified."""

import functools
import json
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidgpt import files
from fidgpt.data.errors import DataError, delete_command

INDEX = "index.json"
RECORD = "record.json"  # the state from which an interrupted write resumes
FORMAT_VERSION = 2
# Hashing runs at 0.5 to 2 GB/s, so directories below this size are verified on opening.
VERIFIED_BELOW_BYTES = 256 * 1024 * 1024
# Below the per-process limit of macOS (256), with room for other files.
MAX_OPEN_FILES = 128


class IndexedDirectory:
    """The directory of a prepared corpus, with an index of its files; it may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether the directory has an index; its files may still be damaged."""
        return (self.path / INDEX).is_file()

    def write_once(
        self,
        write: Callable[[Path], dict[str, Any]],
        *,
        key: str,
        on_wait: Callable[[], None],
    ) -> None:
        """Write the directory atomically, unless it exists or another process is writing it.

        Args:
          write: writes the files into a temporary directory, and returns the index.
          key: identifies the contents; after a failure, a temporary directory with a `RECORD` is
            kept for the next attempt with the same key.
          on_wait: called before waiting for another process.

        Raises:
          DataError: the directory cannot be written.
        """
        if self.exists:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with files.only_one(self.path, on_wait=on_wait) as locked:
                if self.exists:
                    return
                if locked:
                    place = files.resumable_directory(self.path, key=key, record=RECORD)
                else:  # without locks, several processes may be writing
                    place = files.atomic_path(self.path)
                with place as draft:
                    draft.mkdir(exist_ok=True)
                    index = json.dumps({"version": FORMAT_VERSION, **write(draft)}, indent=1)
                    files.write_whole(draft / INDEX, index + "\n")
        except OSError as error:
            if self.exists:  # by another process, on a file system without locks
                return
            raise DataError(
                f"Cannot write the prepared corpus to {self.path}: {error.strerror or error}.\n"
                "Free some space there, make it writable, or choose another location: "
                "cache_dir=..., --out, or the environment variable FIDGPT_CACHE."
            ) from error

    def read_index(self) -> dict[str, Any]:
        """Return the index; raise DataError if it cannot be read or has another version."""
        try:
            index: Any = files.parse_json(files.read_bytes(self.path / INDEX))
        except (OSError, ValueError) as error:
            raise self.damaged(f"its {INDEX} cannot be read ({error})") from error
        version = index.get("version") if isinstance(index, dict) else None
        if version != FORMAT_VERSION:
            raise self.damaged(f"its format is version {version}, not {FORMAT_VERSION}")
        return index

    def check_size(self, file: str, *, size: int) -> None:
        """Raise DataError unless a file exists and has this many bytes."""
        try:
            size_now = (self.path / file).stat().st_size
        except OSError as error:
            raise self.damaged(f"{file} is missing") from error
        if size_now != size:
            raise self.damaged(f"{file} has {size_now} bytes, but the index has {size}")

    def check_hash(self, file: str, *, sha256: str) -> None:
        """Raise DataError unless a file has this SHA-256 hash."""
        try:
            hash_now = files.sha256_of(self.path / file)
        except OSError as error:
            raise self.damaged(f"{file} cannot be read ({error.strerror})") from error
        if hash_now != sha256:
            raise self.damaged(
                f"{file} was altered: its SHA-256 is {hash_now[:12]}..., but the index has "
                f"{sha256[:12]}..."
            )

    def damaged(self, reason: str) -> DataError:
        """Return the error for a directory that cannot be used."""
        return DataError(
            f"The prepared corpus in {self.path} cannot be used: {reason}.\nDelete it "
            f"({delete_command(self.path)}) and start again to rebuild it from the source."
        )


class ArrayFile:
    """A file of numbers of one dtype, opened when first read; at most 128 files stay open.

    Not a memory map: with one, a truncated file or a failing disk kills the process by SIGBUS.
    Positional reads cost about half a microsecond more per sequence, and release the GIL while they
    wait for the disk.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.path = path
        self._dtype = dtype

    def read(self, begin: int, stop: int) -> NDArray[Any]:
        """Return the numbers in [begin, stop); raises like `read_into`."""
        numbers = np.empty(stop - begin, dtype=self._dtype)
        self.read_into(numbers, begin=begin)
        return numbers

    def read_into(self, numbers: NDArray[Any], *, begin: int) -> None:
        """Fill an array, of the file's dtype, with the numbers from index `begin` on.

        Raises:
          DataError: the file is too short or cannot be read.
        """
        offset = begin * self._dtype.itemsize
        try:
            opened = _open(self)  # keeps the file open, even if another thread evicts it
            done = os.preadv(opened.number, [numbers.data], offset)
            while done < numbers.nbytes:  # reads may be short
                rest = numbers.view(np.uint8).data[done:]
                more = os.preadv(opened.number, [rest], offset + done)
                if not more:
                    size = os.fstat(opened.number).st_size
                    raise self._unreadable(f"it ends after {size} bytes")
                done += more
        except OSError as error:
            raise self._unreadable(error.strerror or str(error)) from error

    def _unreadable(self, reason: str) -> DataError:
        return DataError(
            f"{self.path} can no longer be read: {reason}.\n"
            "Restore it and resume; or delete its directory and start again to rebuild it from "
            "the source."
        )


class _Descriptor:
    """An open file, closed when no thread uses it anymore."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.number).atexit = False


@functools.lru_cache(maxsize=MAX_OPEN_FILES)
def _open(file: ArrayFile) -> _Descriptor:
    return _Descriptor(file.path)
