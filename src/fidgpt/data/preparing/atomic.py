"""A directory that is there whole or not at all, however many processes make it at once."""

import contextlib
import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from fidgpt.drafts import sync

_UNFINISHED = ".fidgpt-unfinished-"
_RESUMABLE = ".fidgpt-resumable-"


@contextlib.contextmanager
def only_one(directory: Path, *, on_wait: Callable[[], None]) -> Iterator[bool]:
    """Hold the right to make `directory`; others wait, after a call of `on_wait`.

    The kernel gives the right back when a process dies, and the next holder removes what it left.
    On a file system without locks nobody waits, the first to finish wins, and this gives False.
    """
    path = _lock_path(directory)
    handle = _acquire(path, on_wait=on_wait)
    try:
        if handle is not None:
            _remove_leftovers(directory, mark=_UNFINISHED, is_left=lambda *_: True)
        yield handle is not None
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
        _publish(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def resumable_directory(directory: Path, *, key: str, record: str) -> Iterator[Path]:
    """As `new_directory`, but a file `record` in it says that it is to be gone on with.

    Where there is one, it outlives whatever ends the block, a kill too, and the next who comes
    with the same `key` finds it all. The caller is the `only_one`; what was begun for `directory`
    with another key is removed. The record has to be gone when the block succeeds.
    """
    temporary = directory.parent / f".{directory.name}{_RESUMABLE}{key}"
    _remove_leftovers(
        directory,
        mark=_RESUMABLE,
        is_left=lambda path, own: path != temporary if own else not (path / record).exists(),
    )
    temporary.mkdir(exist_ok=True)
    try:
        yield temporary
        _publish(temporary, directory)
    finally:
        if not (temporary / record).exists():
            shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: Path, directory: Path) -> None:
    """Give it its name, unless somebody else made `directory` meanwhile."""
    for path in (*sorted(temporary.iterdir()), temporary):
        sync(path)
    try:
        temporary.rename(directory)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    sync(directory.parent)


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


def _remove_leftovers(directory: Path, *, mark: str, is_left: Callable[[Path, bool], bool]) -> None:
    """Remove what killed processes left beside `directory`; the caller holds its lock.

    `is_left` is asked with the path, and whether it was begun for `directory` itself.
    """
    for path in directory.parent.glob(f".*{mark}*"):
        owner = directory.parent / path.name[1:].split(mark)[0]
        if not is_left(path, owner == directory):
            continue
        if owner == directory:
            shutil.rmtree(path, ignore_errors=True)
        elif (handle := _acquire(_lock_path(owner), on_wait=None)) is not None:
            if is_left(path, False):  # its owner may have been at work until now
                shutil.rmtree(path, ignore_errors=True)
            _lock_path(owner).unlink(missing_ok=True)
            os.close(handle)
