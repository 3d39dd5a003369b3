"""Files and folders that are whole under their name or absent; what a kill leaves is removed."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

MARK = ".fidgpt-draft-"
_LOCK = "lock"


@contextlib.contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """A place for a file or folder, which takes the name `path` once the block has made it.

    If the block fails, nothing is left. The place is in a hidden folder beside `path` whose lock
    this process holds. The kernel gives it back when the process dies, by which whoever next writes
    into the same directory knows what to remove. On a file system without locks it stays.
    A link is written through, as by whoever opens it: /dev/stdout is the whole machine's.

    Raises:
      OSError: it cannot be written, or `path` is a folder that holds something.
    """
    import shutil  # late: completion writes here, and has no time

    target = Path(os.path.realpath(path))
    remove_leftovers(target.parent)
    folder, handle = _begin(target.parent)
    try:
        yield folder / path.name
        os.replace(folder / path.name, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is there whole or not at all, on the disk when this returns.

    Of several who write it at once, one wins.

    Raises:
      OSError: it cannot be written.
    """
    with drafted(path) as draft:
        draft.write_text(text, encoding="utf-8")
        sync(draft)
    sync(path.resolve().parent)  # where a link leads to


def sync(path: Path) -> None:
    """Waits until a file's bytes, or a directory's names, would survive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(directory: Path) -> None:
    """Removes what killed processes were about to write into a directory."""
    drafts: list[Path] = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:  # it cannot be listed
        drafts = [Path(entry.path) for entry in entries if entry.name.startswith(MARK)]
    for draft in drafts:
        _remove_left(draft)


def _begin(directory: Path) -> tuple[Path, int]:
    """A new folder for a draft, and the handle that holds its lock."""
    import shutil

    while True:
        folder = directory / f"{MARK}{os.urandom(8).hex()}"
        folder.mkdir()
        try:
            handle = _locked(folder, wait=True)
        except BaseException:  # the disk is full
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if handle is not None:
            return folder, handle


def _remove_left(draft: Path) -> None:
    import shutil

    with contextlib.suppress(OSError):  # it is another user's, or its writer has just ended
        handle = _locked(draft, wait=False)
        if handle is not None:
            shutil.rmtree(draft, ignore_errors=True)
            os.close(handle)


def _locked(folder: Path, *, wait: bool) -> int | None:
    """A handle that holds the lock of a draft; None where somebody else does, or it is gone.

    Where there are no locks, who waits for one has it, and nobody else.
    """
    import fcntl

    path = folder / _LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:
        return None
    has_it = wait
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Who had it before may have removed the folder, file and all.
        has_it = os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        has_it = False
    except OSError:  # no locks, or another one's
        pass
    if not has_it:
        os.close(handle)
    return handle if has_it else None
