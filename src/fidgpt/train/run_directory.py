"""The run directory: the records of a run, and requests to stop."""

import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from fidgpt.files import atomic_path, lock, read_bytes, sync, trusted, write_whole

__all__ = ["Outcome", "RunDirectory", "RunError"]


class RunError(ValueError):
    """A run cannot start or continue; the message names the reason and the remedy."""


FLAGS_FILE = "flags.txt"
RUN_ID = "run_id.txt"  # of the run, whatever its directory is called
_CONFIG = "config.json"
_JOURNAL = "changes.jsonl"
_LOCK = ".lock"
_LEASE_SECONDS = 100.0  # NFS keeps the locks of a machine that is gone for 90 s


def resume_flag(path: Path) -> str:
    """Return the flag that resumes the run in `path`, quoted for a shell."""
    return shell_words(path, f"--resume={path}")


def shell_words(path: Path, *words: str) -> str:
    """Return arguments of a command on the run in `path`, after the flags that the run needs.

    Flags that no command on this machine had, because the run began elsewhere, are left out.
    """
    flags: list[str] = []
    with contextlib.suppress(OSError, UnicodeError):  # few runs have flags
        flags = read_bytes(path / FLAGS_FILE).decode().splitlines()
    return shlex.join([*trusted().intersection(flags), *words])


def cannot_write(path: Path, error: Exception, *, run: Path, size: int = 0) -> str:
    """Describe an error of the file system, with a remedy.

    Args:
      path: what cannot be written.
      error: of the operating system, or of safetensors, which reports those as text.
      run: the run directory.
      size: bytes to be written, if that is known.
    """
    match = re.search(r"os error (\d+)", str(error))
    number = error.errno if isinstance(error, OSError) else int(match[1]) if match else None
    reason = str(error) if number is None else os.strerror(number)
    remedy = "give the run a directory that can be written"
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = shutil.disk_usage(next(parent for parent in path.parents if parent.exists())).free
        room = f"it takes {size / 1e6:,.1f} MB and " if size else ""
        remedy = f"{room}{free / 1e6:,.1f} MB are free: make room or raise the quota"
    return f"{path} cannot be written ({reason}); {remedy}, then resume with {resume_flag(run)}"


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
      path: its directory.
      step: optimizer steps done.
      stopped_by: the signal that ended it early, or None.
    """

    path: Path
    step: int
    stopped_by: signal.Signals | None


@dataclass(eq=False)
class RunDirectory:
    """The one folder that holds all of a run, and the texts that are written as it starts.

    Args:
      path: the folder; created by `create`.
      texts: contents of files by name, such as the config and the command.
      changes: if the run is resumed with another config, a row of plain values for each difference.
      identity: texts by name that must be the same on every process of the run.
      may_move: whether `create` takes another name if this one is taken, as by a run that was
        started in the same second.
    """

    path: Path
    _: KW_ONLY
    texts: Mapping[str, str]
    changes: Sequence[Mapping[str, str]] = ()
    identity: Mapping[str, str] = field(default_factory=dict)
    may_move: bool = False

    @property
    def has_changed(self) -> bool:
        """Whether the config has changed since the run began, by this resume or an earlier one."""
        return bool(self.changes) or (self.path / _JOURNAL).exists()

    def require_free(self) -> None:
        """Raise RunError early if the folder could not be created."""
        if os.path.lexists(self.path) and not self.may_move:
            raise self._exists()
        parent = next(folder for folder in self.path.absolute().parents if os.path.exists(folder))
        if not os.access(parent, os.W_OK | os.X_OK):
            raise self._not_created(os.strerror(errno.EACCES))

    def require_writable(self) -> None:
        """Raise RunError early if a run cannot continue in the folder.

        A missing folder is reported by whoever reads it.
        """
        if os.path.exists(self.path) and not os.access(self.path, os.W_OK | os.X_OK):
            raise RunError(
                f"{self.path} cannot be written ({os.strerror(errno.EACCES)}), and a resumed run "
                "writes there: change its permissions, or copy the run."
            )

    def create(self, *, fill: Callable[[Path], object] | None = None) -> None:
        """Create the folder with its texts, atomically.

        Args:
          fill: writes more into the folder that it is given.

        Raises:
          RunError: something is there already, or it cannot be written.
        """
        name, number = self.path.name, 1
        while not self._is_created(fill):
            if not self.may_move:
                raise self._exists()
            number += 1
            self.path = self.path.with_name(f"{name}-{number}")

    def _is_created(self, fill: Callable[[Path], object] | None) -> bool:
        """Create the folder; return False if something is there already."""
        if os.path.lexists(self.path):
            return False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(self.path) as draft:
                draft.mkdir()
                for name, text in {RUN_ID: f"{uuid.uuid4().hex}\n", **self.texts}.items():
                    (draft / name).write_text(text, encoding="utf-8")
                if fill is not None:
                    fill(draft)
                for path in (*draft.iterdir(), draft):
                    sync(path)
            sync(self.path.parent)
        except (OSError, UnicodeError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise self._not_created(getattr(error, "strerror", None) or str(error)) from error
        return True

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in the folder; the lock ends with the process.

        Without effect on file systems without locks. Under torchrun, which starts processes again
        on other machines, this waits until the file server has noticed that one is gone.

        Raises:
          RunError: another process trains there, or it cannot be written.
        """
        self.require_writable()
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                # A file, because NFS does not lock folders.
                handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
                stack.callback(os.close, handle)
                deadline = time.monotonic() + _LEASE_SECONDS * ("TORCHELASTIC_RUN_ID" in os.environ)
                while not (is_ours := lock(handle)) and time.monotonic() < deadline:
                    time.sleep(0.2)
                if not is_ours:
                    raise RunError(
                        f"another process trains in {self.path} right now: wait until it ends, or "
                        "stop it first."
                    )
            yield

    def _exists(self) -> RunError:
        if not (self.path / _CONFIG).exists():  # a file, a dangling link, an unrelated folder
            return RunError(f"{self.path} exists already and is not a run: name another directory.")
        return RunError(
            f"{self.path} exists already: name another run directory, or resume with "
            f"{resume_flag(self.path)}."
        )

    def _not_created(self, reason: str) -> RunError:
        return RunError(
            f"the run directory {self.path} cannot be created ({reason}): name another one with "
            "--run_dir."
        )

    def record_changes(self, *, step: int) -> None:
        """Rewrite the texts if the config changed, and append the changes to `changes.jsonl`.

        The previous texts are kept beside them, as `config.until_step_100.json`.

        Args:
          step: the last one by the previous config.

        Raises:
          RunError: the disk is full, or the directory cannot be written.
        """
        if not self.changes:
            return
        olds = {name: self._read(name) for name in (*self.texts, _JOURNAL)}
        for name, text in self.texts.items():
            old, path = olds[name], Path(name)
            kept = f"{path.stem}.until_step_{step}{path.suffix}"
            if old is not None and not (self.path / kept).exists():
                self.write(kept, old)
            self.write(name, text)
        rows = [json.dumps({"after_step": step, **change}) + "\n" for change in self.changes]
        self.write(_JOURNAL, (olds[_JOURNAL] or "") + "".join(rows))

    def _read(self, name: str) -> str | None:
        """Return the text of a file of the folder; None if it is missing."""
        path = self.path / name
        return read_bytes(path).decode() if path.exists() else None

    def sync(self) -> None:
        """Flush what was written into the folder so far to the disk.

        Raises:
          RunError: the folder is gone, or cannot be read.
        """
        try:
            if _CONFIG in self.texts:  # a background save may have created the folder again
                sync(self.path / _CONFIG)
            for path in self.path.iterdir():
                # Except for other programs' and users' files, which may vanish.
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    if path.is_file():
                        sync(path)
        except OSError as error:
            raise RunError(
                f"the run directory {self.path} is gone or cannot be written ({error.strerror}): "
                f"restore it and resume with {resume_flag(self.path)}; if it was moved, name its "
                "new path there."
            ) from error

    def write(self, name: str, text: str) -> None:
        """Write one file atomically.

        Raises:
          RunError: the disk is full or the directory cannot be written.
        """
        try:
            write_whole(self.path / name, text)
        except OSError as error:
            raise RunError(f"{self.path / name} cannot be written: {error.strerror}.") from error


class StopSignals:
    """Records Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP while entered; a second Ctrl-C ends at once.

    Schedulers send SIGTERM, or a signal of choice, some time before they take a machine away; with
    Slurm it is `--signal=USR1@120`. A closed terminal sends SIGHUP, which stays ignored under
    `nohup`.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)


def print_stderr(line: str) -> None:
    """Print a line on standard error, if the terminal is still there."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr)
