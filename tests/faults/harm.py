"""What happens to processes, files and disks, and when: at which call or change of the disk."""

import contextlib
import ctypes
import errno
import functools
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fidgpt.train import Ema
from fidgpt.train.trackers.console import Console
from fidgpt.train.trackers.trackers import Row

Act = Callable[[], None]
FILLER = "filler"


def kill() -> None:
    """As the kernel ends a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def raising(*numbers: int) -> Act:
    """Signals to this process, one after the other."""

    def act() -> None:
        for number in numbers:
            signal.raise_signal(number)

    return act


def sleep_and_wake(*, seconds: float = 0.02) -> None:
    """Stops as a laptop does that is closed, and goes on later."""
    sleeper = os.getpid()
    if os.fork() == 0:
        time.sleep(seconds)
        os.kill(sleeper, signal.SIGCONT)
        os._exit(0)
    os.kill(sleeper, signal.SIGSTOP)
    os.wait()


def hang() -> None:
    """Waits for what never comes."""
    time.sleep(10**6)


def removed(path: Path) -> Act:
    """A directory goes, whatever writes into it meanwhile."""

    def act() -> None:
        while path.exists():
            shutil.rmtree(path, ignore_errors=True)

    return act


def filled(folder: Path, *, left: int) -> Act:
    """The file system of a folder is full, but for so many bytes."""

    def act() -> None:
        with (folder / FILLER).open("wb") as file:
            for _ in range(100):  # others may write meanwhile
                free = shutil.disk_usage(folder).free - left
                with contextlib.suppress(OSError):
                    if free > 0:
                        os.posix_fallocate(file.fileno(), 0, free)
                    return

    return act


def jumping_clock(draw: random.Random) -> Act:
    """From now on the time of day jumps, back and forth, by up to ten years."""
    now, now_ns = time.time, time.time_ns

    def jump() -> float:
        return draw.choice([0.0, draw.uniform(-10, 10), draw.uniform(-3e8, 3e8)])

    def act() -> None:
        time.time = lambda: now() + jump()
        time.time_ns = lambda: now_ns() + int(1e9 * jump())

    return act


def broken_tracker() -> None:
    """From now on the console cannot be written, as where a terminal is gone."""

    def log(self: Console, row: Row) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    Console.log = log


def forget_averages() -> None:
    """From now on an average of weights is not restored: a mistake that must be found."""
    Ema.load_state_dict = lambda self, state: None


Hurt = Callable[[Path, random.Random], None]


def truncate(file: Path, draw: random.Random) -> None:
    """The end is missing, or all of it."""
    os.truncate(file, draw.choice([0, draw.randrange(file.stat().st_size)]))


def flip(file: Path, draw: random.Random) -> None:
    """One bit is another."""
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)


def remove(file: Path, draw: random.Random) -> None:
    """It is not there."""
    file.unlink()


class Power:
    """Notes how much of each file was synced, so that the rest can be taken away.

    Names are taken to be on the disk at once, which file systems mostly see to by themselves.

    Args:
      journal: a file outside of what loses its power.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal

    def record(self) -> None:
        """From now on, what this process syncs is noted."""
        fsync = os.fsync
        journal = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

        def noted(descriptor: int) -> None:
            fsync(descriptor)
            found = os.fstat(descriptor)
            os.write(journal, f"[{found.st_ino}, {found.st_size}]\n".encode())

        os.fsync = noted

    def fail(self, folder: Path) -> None:
        """Cuts the files in a folder down to what was synced of them."""
        lines = self._journal.read_text().splitlines() if self._journal.exists() else []
        synced = dict(json.loads(line) for line in lines)
        for path in folder.rglob("*"):
            if path.is_file():
                found = path.stat()
                os.truncate(path, min(found.st_size, synced.get(found.st_ino, 0)))


_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_REC, _PRIVATE = 0x4000, 1 << 18


def mounted(folder: Path, *, megabytes: int) -> bool:
    """Puts a tmpfs over a folder, which this process and its children alone see.

    It goes with them. Nothing happens, and the answer is False, where the machine forbids it.
    """
    system = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if system.unshare(_NEWNS) != 0:
        if system.unshare(_NEWNS | _NEWUSER) != 0:
            return False
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    if system.mount(b"none", b"/", None, _REC | _PRIVATE, None) != 0:
        return False
    options = f"size={megabytes}m".encode()
    return system.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options) == 0


# What a process does to the disk, as Python's audit hooks report it.
_CHANGES = frozenset(
    f"os.{name}" for name in ("rename", "remove", "truncate", "mkdir", "rmdir", "chmod", "link")
) | {"open"}


class Place(NamedTuple):
    """Somewhere in a run.

    Attributes:
      function: `module:name`, looked up where it is called.
      occurrence: its how manieth call, from 1.
      unit: what is counted in it, "calls" of any function or "disk" for changes of files.
      number: acts before that one; behind the function's last where there are not as many.
    """

    function: str
    occurrence: int
    unit: str
    number: int

    def arm(self, act: Act, folder: Path) -> None:
        """From now on the act happens there, once.

        Args:
          act: what happens.
          folder: where changes of files count.
        """
        seen = itertools.count(1)

        def around(function: Callable[[], Any]) -> Any:
            if next(seen) != self.occurrence:
                return function()
            left, pending = itertools.count(self.number, -1), [act]

            def count() -> None:
                if pending and next(left) == 0:
                    pending.pop()()

            if self.unit == "disk":
                sys.addaudithook(_hook(folder, count))
            else:
                sys.setprofile(_on_calls(count))
            try:
                result = function()
                sys.setprofile(None)
                if pending:
                    pending.pop()()
                return result
            finally:
                sys.setprofile(None)
                pending.clear()

        wrap(self.function, around)


def refuse_changes(folder: Path, number: int) -> None:
    """From now on no call of Python changes a folder; each fails with an error of that number."""

    def refuse(event: str, arguments: Any) -> None:
        if event not in _CHANGES or not str(arguments[0]).startswith(str(folder)):
            return
        reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not reads:
            raise OSError(number, os.strerror(number), str(arguments[0]))

    sys.addaudithook(refuse)


def wrap(function: str, around: Callable[[Callable[[], Any]], Any]) -> None:
    """Has every call of a function made by `around`.

    Raises:
      AttributeError: there is no such function any more.
    """
    module, _, path = function.partition(":")
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    real = getattr(owner, name)

    @functools.wraps(real)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        return around(lambda: real(*arguments, **options))

    setattr(owner, name, wrapped)


def _on_calls(notify: Act) -> Callable[[object, str, object], None]:
    """Return a profile function that counts calls."""

    def profile(frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            notify()

    return profile


def _hook(folder: Path, notify: Callable[[], Any]) -> Callable[[str, Any], None]:
    """Return a hook for changes in a folder; what is deleted as a tree has relative names."""

    def hook(event: str, arguments: Any) -> None:
        if event in _CHANGES:
            path = str(arguments[0])
            if not path.startswith("/") or str(folder) in path:
                notify()

    return hook
