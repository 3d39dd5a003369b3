"""The file of a search's study, and who works on it; what a killed process held is free again."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from fidgpt.sweep.runners.locking import lock, wait_for_lock

FILE = "study.journal"
_LOCK, _PRESENCE = ".study.lock", ".search.lock"


def journal(directory: Path) -> JournalStorage:
    """The storage in the directory of a search, which is made if there is none.

    A last line that was cut short, as by a full disk, is taken away: it would spoil the next one.
    """
    path, own = directory / FILE, _Lock(directory / _LOCK)
    own.acquire()
    try:
        _cut_half_line(path)
    finally:
        own.release()
    return JournalStorage(JournalFileBackend(str(path), lock_obj=own))


@contextlib.contextmanager
def present(directory: Path) -> Iterator[bool]:
    """While entered, others know that a search is driven here; gives whether none was before."""
    with (directory / _PRESENCE).open("ab") as file:
        is_alone = lock(file)
        wait_for_lock(file, fcntl.LOCK_SH)
        yield is_alone


class _Lock(JournalFileOpenLock):
    """Goes with its process; Optuna's own outlives one that is killed, and who comes next waits."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        self._file = self._path.open("ab")
        wait_for_lock(self._file)
        return True

    def release(self) -> None:
        assert self._file is not None
        self._file.close()


def _cut_half_line(path: Path) -> None:
    text = path.read_bytes() if path.exists() else b""
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        os.truncate(path, whole)
