"""What happens to a process from inside: it is killed, told to stop, robbed, or misled."""

import contextlib
import errno
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fidgpt.train.trackers.console import Console
from fidgpt.train.trackers.trackers import Row

Act = Callable[[], None]
FILLER = "filler"


def kill() -> None:
    """As the kernel ends a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def told(*numbers: int) -> Act:
    """Signals to this process, one after the other."""

    def act() -> None:
        for number in numbers:
            signal.raise_signal(number)

    return act


def sleep_and_wake() -> None:
    """Stops as a laptop does that is closed, and goes on a moment later."""
    sleeper = os.getpid()
    if os.fork() == 0:
        time.sleep(0.02)
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


def limited(size: int) -> Act:
    """No file may grow beyond so many bytes, where no small file system can be mounted."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


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
