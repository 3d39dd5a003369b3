"""Files that are written whole or not at all."""

import contextlib
import errno
import fcntl
import glob
import io
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

MARK = ".fidgpt-draft-"
_TRUSTED = "trusted.txt"  # in the cache directory
LIST = "fidgpt-files.json"  # in a folder: the names of what fidgpt has written there
LARGEST = 1 << 26  # bytes of a file that is read at once
_LOCK = "lock"


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A place for a file or folder, which takes the name `path` once the block has made it.

    If the block fails, nothing is left. The place is in a hidden folder beside `path` whose lock
    this process holds. The kernel gives it back when the process dies, by which whoever next writes
    into the same directory knows what to remove. On a file system without locks it stays.
    A link is written through, as by whoever opens it: /dev/stdout is the whole machine's.

    Raises:
      OSError: it cannot be written, or `path` is a folder that holds something.
    """
    target = Path(os.path.realpath(path))
    with _draft_folder(target.parent) as folder:
        yield folder / path.name
        os.replace(folder / path.name, target)


def remove_whole(path: Path) -> None:
    """Remove a folder, of which nothing is left where the process dies before the end."""
    with _draft_folder(path.parent) as folder:
        os.rename(path, folder / path.name)
        sync(path.parent)


@contextlib.contextmanager
def _draft_folder(directory: Path) -> Iterator[Path]:
    """A hidden folder in the directory, which is removed after the block; see `atomic_path`."""
    remove_leftovers(directory)
    folder, handle = _begin(directory)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def cache_directory() -> Path:
    """Return `$FIDGPT_CACHE`, else `$XDG_CACHE_HOME/fidgpt`, else `~/.cache/fidgpt`.

    Raises:
      ValueError: there is no such home directory.
    """
    try:
        if own := os.environ.get("FIDGPT_CACHE"):
            return Path(own).expanduser()
        if common := os.environ.get("XDG_CACHE_HOME"):
            return Path(common).expanduser() / "fidgpt"
        return Path.home() / ".cache" / "fidgpt"
    except RuntimeError as error:
        raise ValueError(
            f"There is no home directory for the cache ({error})\n"
            "Set the environment variable FIDGPT_CACHE to a directory."
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is there whole or not at all, on the disk when this returns.

    Of several who write it at once, one wins.

    Raises:
      OSError: it cannot be written.
    """
    with atomic_path(path) as draft:
        draft.write_text(text, encoding="utf-8")
        sync(draft)
    sync(path.resolve().parent)  # where a link leads to


def open_regular(path: str | Path, *, pipe: bool = False) -> io.BufferedReader:
    """Open a file for reading, but no device, which might have no end.

    A pipe is refused too, unless `pipe` is set; without a writer it is then empty, instead of
    waiting for one.

    Raises:
      OSError: it cannot be opened, or is no regular file; `strerror` is the reason.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not (stat.S_ISREG(mode) or (pipe and stat.S_ISFIFO(mode))):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        os.set_blocking(handle, True)
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_bytes(path: str | Path, *, most: int = LARGEST) -> bytes:
    """Return what a regular file holds, or what its writer writes into a pipe.

    Raises:
      OSError: it cannot be read, is of another kind, or has more than `most` bytes.
    """
    with open_regular(path, pipe=True) as file:
        if os.fstat(file.fileno()).st_size > most:  # of a hole, as large as one likes
            raise _too_large(most)
        return read_all(file, most=most)


def read_all(file: IO[bytes], *, most: int = LARGEST) -> bytes:
    """Return the rest of an open file; raise OSError if it has more than `most` bytes."""
    content = file.read(most + 1)
    if len(content) > most:
        raise _too_large(most)
    return content


def _too_large(most: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB")


def check_url(url: str) -> None:
    """Raise ValueError for a URL that chains protocols: some of them run code in a file."""
    if "::" in url:
        raise ValueError("it chains protocols by ::, and some of them run what files say.")


def parse_json(text: str | bytes) -> Any:
    """Return the data of a JSON text.

    Raises:
      ValueError: it is not JSON, or nested deeper than Python can read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_inside(name: object) -> bool:
    """Return whether a name that a file gives can only name a file beneath a folder."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if it cannot be read or holds none."""
    try:
        content: Any = parse_json(read_bytes(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def trusted() -> set[str]:
    """Return the lines that `trust` has recorded on this machine."""
    with contextlib.suppress(OSError, ValueError):
        return set(read_bytes(cache_directory() / _TRUSTED).decode().splitlines())
    return set()


def trust(lines: Iterable[str]) -> None:
    """Record what a command of the user has named, such as a place that a run sends to."""
    # Without a cache directory, every command must name it.
    with contextlib.suppress(OSError, ValueError):
        if new := sorted({*lines} - trusted()):
            path = cache_directory() / _TRUSTED
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in new if line.isprintable())


def list_own(directory: Path, names: Iterable[str], *, replaces: Iterable[str]) -> set[str]:
    """Record the files that are about to be written into a folder; return those listed before.

    Args:
      directory: an existing folder.
      names: of the files.
      replaces: names of files that would be lost.

    Raises:
      FileExistsError: one of `replaces` is there and no call has listed it; `filename` is its path.
    """
    earlier = {*read_json(directory / LIST).get("files", ())}
    for name in replaces:
        if name not in earlier and os.path.lexists(directory / name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory / name))
    content = {"files": sorted({*earlier, *names})}
    write_whole(directory / LIST, json.dumps(content, indent=1) + "\n")
    return earlier


def sync(path: Path) -> None:
    """Waits until a file's bytes, or a directory's names, would survive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; computing it releases the GIL."""
    import hashlib  # late: completion needs none of it

    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_leftovers(directory: Path) -> None:
    """Removes what killed processes were about to write into a directory."""
    drafts: list[Path] = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:  # it cannot be listed
        drafts = [Path(entry.path) for entry in entries if entry.name.startswith(MARK)]
    for draft in drafts:
        _remove_left(draft)


def _begin(directory: Path) -> tuple[Path, int]:
    """A new folder for a draft, and the handle that holds its lock."""
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
    with contextlib.suppress(OSError):  # it is another user's, or its writer has just ended
        if not (draft / _LOCK).exists():  # its writer had not begun, or another's file
            return draft.rmdir()
        handle = _locked(draft, wait=False)
        if handle is not None:
            shutil.rmtree(draft, ignore_errors=True)
            os.close(handle)


def _locked(folder: Path, *, wait: bool) -> int | None:
    """A handle that holds the lock of a draft; None where another process does, or it is gone.

    Where there are no locks, a process that waits for one has it alone.
    """
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


@contextlib.contextmanager
def only_one(directory: Path, *, on_wait: Callable[[], None]) -> Iterator[bool]:
    """Hold the lock for making `directory`; the kernel releases it if the process dies.

    Other processes wait for it, after a call of `on_wait`. On a file system without locks nothing
    waits, and this yields False.
    """
    path = directory.parent / f".{directory.name}.fidgpt-lock"
    handle = _acquire(path, on_wait=on_wait)
    try:
        yield handle is not None
    finally:
        path.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)


@contextlib.contextmanager
def resumable_directory(directory: Path, *, key: str, record: str) -> Iterator[Path]:
    """Yield a directory beside `directory` that takes its name if the block succeeds.

    If the block fails, or the process dies, while there is a file `record` in it, the directory is
    kept, and the next caller with the same `key` gets it back. What was begun for `directory`
    with another key is removed. The caller holds the lock of `only_one`.
    """
    prefix = f".{directory.name}.fidgpt-resumable-"
    draft = directory.parent / f"{prefix}{key}"
    for other in directory.parent.glob(f"{glob.escape(prefix)}*"):
        if other != draft or not (draft / record).exists():
            shutil.rmtree(other, ignore_errors=True)
    draft.mkdir(exist_ok=True)
    try:
        yield draft
        (draft / record).unlink(missing_ok=True)
        for path in (*draft.iterdir(), draft):
            sync(path)
        draft.rename(directory)
        sync(directory.parent)
    finally:
        if not (draft / record).exists():
            shutil.rmtree(draft, ignore_errors=True)


def _acquire(path: Path, *, on_wait: Callable[[], None]) -> int | None:
    """Return an open handle that holds the lock; None if the file system has no locks."""
    while True:
        with contextlib.ExitStack() as stack:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            stack.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError:
                return None
            # The previous holder removed its file, and another process may have made a new one.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    stack.pop_all()
                    return handle


def lock(file: IO[bytes] | int) -> bool:
    """Locks an open file; False where another process holds it.

    It is held until the last process that has this file open ends, whatever becomes of the one
    that opened it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks excludes no process
        pass
    return True


def wait_for_lock(file: IO[bytes], kind: int = fcntl.LOCK_EX) -> None:
    """Locks an open file as soon as no other process holds it.

    Args:
      file: held until it is closed.
      kind: fcntl.LOCK_EX for one process alone; fcntl.LOCK_SH for all that ask so.
    """
    with contextlib.suppress(OSError):  # a file system without locks excludes no process
        fcntl.flock(file, kind)
