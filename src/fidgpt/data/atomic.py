"""A directory that is there whole or not at all, however many processes make it at once."""

import contextlib
import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

_UNFINISHED = ".fidgpt-unfinished-"


@contextlib.contextmanager
def only_one(directory: Path, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the right to make `directory`; others wait, after a call of `on_wait`.

    The kernel gives the right back when a process dies, and the next holder removes what it left.
    On a file system without locks nobody waits, and the first to finish wins.
    """
    path = _lock_path(directory)
    handle = _acquire(path, on_wait=on_wait)
    try:
        if handle is not None:
            _remove_unfinished(directory)
        yield
    finally:
        path.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)


@contextlib.contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """A temporary directory beside `directory` that takes its name if the block succeeds.

    If the block fails, nothing is left. If somebody else made `directory` meanwhile, theirs stays.
    """
    temporary = directory.parent / f".{directory.name}{_UNFINISHED}{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        yield temporary
        for path in (*sorted(temporary.iterdir()), temporary):
            _sync(path)
        try:
            temporary.rename(directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        _sync(directory.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _lock_path(directory: Path) -> Path:
    return directory.parent / f".{directory.name}.fidgpt-lock"


def _acquire(path: Path, *, on_wait: Callable[[], None] | None) -> int | None:
    """An open handle that holds the lock; None without locks, or, without `on_wait`, when taken."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            locked = _lock(handle, on_wait=on_wait)
            # The holder before us removed its file, and another may have made a new one since.
            if locked and _is_at(path, handle):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if not locked:
            return None


def _lock(handle: int, *, on_wait: Callable[[], None] | None) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if on_wait is None:
            return False
        on_wait()
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:  # this file system has no locks
        return False
    return True


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _remove_unfinished(directory: Path) -> None:
    """Remove what killed processes left beside `directory`; the caller holds its lock."""
    for leftover in directory.parent.glob(f".*{_UNFINISHED}*"):
        owner = directory.parent / leftover.name[1:].split(_UNFINISHED)[0]
        if owner == directory:
            shutil.rmtree(leftover, ignore_errors=True)
        elif (handle := _acquire(_lock_path(owner), on_wait=None)) is not None:
            shutil.rmtree(leftover, ignore_errors=True)
            _lock_path(owner).unlink(missing_ok=True)
            os.close(handle)


def _sync(path: Path) -> None:
    """Wait until a file or a directory is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
