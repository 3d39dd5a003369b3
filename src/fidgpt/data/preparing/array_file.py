"""A file of numbers that is read by position: cut short, it is an error and not a signal."""

import os
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fidgpt.data.errors import DataError

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
