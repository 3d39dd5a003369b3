"""The run directory: what is recorded, and requests to stop."""

import contextlib
import errno
import fcntl
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fidgpt.files import atomic_path, sync


class RunError(ValueError):
    """A run cannot begin or go on; the message says why and what to do."""


FLAGS_FILE = "flags.txt"
_CONFIG = "config.json"
_JOURNAL = "changes.jsonl"
_LOCK = ".lock"


def resume_flag(path: Path) -> str:
    """What goes on with the run in `path`, as one copies it into a shell."""
    return shell_words(path, f"--resume={path}")


def shell_words(path: Path, *words: str) -> str:
    """Words of a command about the run in `path`, after the flags that each of them needs."""
    file = path / FLAGS_FILE
    try:
        flags = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError):  # few runs have flags
        flags = []
    return shlex.join([*flags, *words])


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


class RunDirectory:
    """The one folder that holds all of a run, and the texts that are written as it begins.

    Args:
      path: the folder; made by `create`, not before.
      texts: contents of files by name, such as the config and the command.
      changes: what differs from the config that the run went by so far, where it goes on with
        another one: a row of plain values for each difference.
      identity: what every process of the run must have alike: a text for each value, by name.
    """

    def __init__(
        self,
        path: Path,
        *,
        texts: Mapping[str, str],
        changes: Sequence[Mapping[str, str]] = (),
        identity: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.texts = texts
        self.changes = changes
        self.identity = identity or {}

    @property
    def has_changed(self) -> bool:
        """Whether the run goes on with another config than it began with, now or since before."""
        return bool(self.changes) or (self.path / _JOURNAL).exists()

    def require_free(self) -> None:
        """Raises RunError where the folder could not be made, before anything that takes long."""
        if os.path.lexists(self.path):
            raise self._taken()
        around = next(one for one in self.path.absolute().parents if os.path.exists(one))
        if not around.is_dir():
            raise self._unmade(os.strerror(errno.ENOTDIR))
        if not os.access(around, os.W_OK | os.X_OK):
            raise self._unmade(os.strerror(errno.EACCES))

    def require_writable(self) -> None:
        """Raises RunError where a run cannot go on in the folder, before anything that takes long.

        One that is not there is told by who reads it.
        """
        if os.path.exists(self.path) and not os.access(self.path, os.W_OK | os.X_OK):
            raise RunError(
                f"{self.path} cannot be written ({os.strerror(errno.EACCES)}), and a run that goes "
                "on writes there: see to it that it can be, or copy the run."
            )

    def create(self, *, fill: Callable[[Path], object] | None = None) -> None:
        """Makes the folder with its texts; under its name it is whole or absent.

        Args:
          fill: writes more into the folder that it is given.

        Raises:
          RunError: something is there already, or it cannot be written.
        """
        if os.path.lexists(self.path):
            raise self._taken()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(self.path) as draft:
                draft.mkdir()
                for name, text in self.texts.items():
                    (draft / name).write_text(text, encoding="utf-8")
                if fill is not None:
                    fill(draft)
                for path in (*draft.iterdir(), draft):
                    sync(path)
            sync(self.path.parent)
        except (OSError, UnicodeError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise self._taken() from None
            raise self._unmade(getattr(error, "strerror", None) or str(error)) from error

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, no other process trains in the folder; a process that dies lets it go.

        Where the file system knows no locks, nobody is kept out.

        Raises:
          RunError: another process trains there, or it cannot be written.
        """
        self.require_writable()
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                # A file and not the folder, which NFS does not lock.
                handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
                stack.callback(os.close, handle)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise RunError(
                        f"another process trains in {self.path} right now: wait for its end, or "
                        "stop it first."
                    ) from None
            yield

    def _taken(self) -> RunError:
        if not (self.path / _CONFIG).exists():  # a file, a dangling link, somebody's folder
            return RunError(
                f"{self.path} exists already, and holds no run: name another directory."
            )
        return RunError(
            f"{self.path} exists already: name another run directory, or go on with "
            f"{resume_flag(self.path)}."
        )

    def _unmade(self, reason: str) -> RunError:
        return RunError(
            f"the run directory {self.path} cannot be made ({reason}): name another one with "
            "--run_dir."
        )

    def go_on(self, *, step: int) -> None:
        """Where the config changed, writes the texts anew and the changes into `changes.jsonl`.

        The texts that held until now stay beside them, as `config.until_step_100.json`.

        Args:
          step: the last one that went by the old config.

        Raises:
          RunError: the disk is full or the directory cannot be written, or what is there cannot
            be read; then nothing was changed.
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
        """What a file of the folder holds; None where it is not there."""
        path = self.path / name
        try:
            return path.read_text(encoding="utf-8") if os.path.lexists(path) else None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise RunError(
                f"{path} cannot be read ({reason}), and would be written anew because the config "
                "changes: move it out of the way."
            ) from error

    def sync(self) -> None:
        """Waits until what was written into the folder so far would survive a loss of power.

        Raises:
          RunError: the folder is gone, or cannot be read.
        """
        try:
            if _CONFIG in self.texts:  # a saving in the background may have made the folder anew
                sync(self.path / _CONFIG)
            for path in self.path.iterdir():
                # Not the run's own: what an editor removes again, or another user put there.
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    if path.is_file():
                        sync(path)
        except OSError as error:
            raise RunError(
                f"the run directory {self.path} is gone or cannot be written ({error.strerror}): "
                f"bring it back and go on with {resume_flag(self.path)}; if it was moved, name its "
                "new place there."
            ) from error

    def write(self, name: str, text: str) -> None:
        """Writes one file whole or not at all.

        Raises:
          RunError: the disk is full or the directory cannot be written.
        """
        target, temporary = self.path / name, self.path / f".{name}.tmp"
        try:
            temporary.write_text(text, encoding="utf-8")
            sync(temporary)
            os.replace(temporary, target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise RunError(f"{target} cannot be written: {error.strerror}.") from error


class StopSignals:
    """Remembers Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP while entered; a second Ctrl-C ends at once.

    Schedulers send SIGTERM, or what they are told to, some time before they take a machine away;
    with Slurm it is `--signal=USR1@120`. SIGHUP is what a terminal sends that is closed; where
    `nohup` has it ignored, it stays so.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def agreed(self, largest: Callable[[int], int]) -> signal.Signals | None:
        """The signal that all processes of a run stop for, whichever of them it was sent to.

        Args:
          largest: gives every process the largest of their numbers; all of them call this.
        """
        number = largest(self.received or 0)
        return signal.Signals(number) if number else None

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)


def tell(line: str) -> None:
    """Says a line on standard error; where the terminal is gone, the run goes on unheard."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr)
