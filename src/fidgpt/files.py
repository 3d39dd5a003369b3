"""Files that are written whole or not at all."""

import contextlib
import errno
import fcntl
import glob
import json
import os
import shutil
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
    name = os.urandom(8).hex()
    made, folder = directory / f".fidgpt-{name}", directory / f"{MARK}{name}"
    made.mkdir()
    try:
        with (made / _LOCK).open("wb") as file:
            wait_for_lock(file)
            made.rename(folder)  # from now on, whoever does not get the lock leaves it alone
            yield folder
    finally:
        _remove_draft(folder)
        _remove_draft(made)


def _remove_draft(draft: Path) -> None:
    """Remove what is left of a draft, its lock last: without a lock, the rest would stay."""
    with contextlib.suppress(OSError):  # it is gone, or another process removes it too
        for path in draft.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != _LOCK:
                path.unlink(missing_ok=True)
        shutil.rmtree(draft)


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


def read_bytes(path: str | Path, *, most: int = LARGEST) -> bytes:
    """Return what a file holds; raise OSError if that cannot be read, or is more than `most`."""
    with open(path, "rb") as file:
        return read_all(file, most=most)


def read_all(file: IO[bytes], *, most: int = LARGEST) -> bytes:
    """Return the rest of an open file; raise OSError if it has more than `most` bytes."""
    content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB")
    return content


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

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_leftovers(directory: Path) -> None:
    """Removes what killed processes were about to write into a directory."""
    for draft in directory.glob(f"{MARK}*"):
        # Another user's file, or its writer lives, or another process removes it too.
        with contextlib.suppress(OSError), (draft / _LOCK).open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_draft(draft)


@contextlib.contextmanager
def only_one(directory: Path, *, on_wait: Callable[[], None]) -> Iterator[bool]:
    """Hold the lock for making `directory`; the kernel releases it if the process dies.

    Other processes wait for it, after a call of `on_wait`. On a file system without locks nothing
    waits, and this yields False.
    """
    path, has_lock = directory.parent / f".{directory.name}.fidgpt-lock", True
    with contextlib.ExitStack() as stack:
        while has_lock:
            file = stack.enter_context(path.open("wb"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                has_lock = False
            # The previous holder removed its file, and another process may have made a new one.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    break
        # Not before it is held, and before it is released: another process's file stays.
        stack.callback(path.unlink, missing_ok=True)
        yield has_lock


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
