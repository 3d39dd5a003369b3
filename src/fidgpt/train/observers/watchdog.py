"""An observer that ends a run which hangs, and says where each of its threads stands."""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO, cast

from fidgpt.parallel import DataParallel
from fidgpt.train.run import RunDirectory
from fidgpt.train.telling import tell

_A_YEAR = 365 * 24 * 60 * 60  # seconds


class Watchdog:
    """Ends this process where the next step takes too long to come.

    The time runs from the beginning of a step to that of the next one, so what lies between them,
    as evaluating and saving, counts. The stacks of all threads go to `stacks/rank0.txt` in the run
    directory, each process writing its own, and the process leaves at once with status 1: a
    scheduler, or `torchrun --max-restarts`, starts it again. It is a thread of the interpreter
    below Python, so it wakes where all of Python waits for a lock too. Time that the process was
    stopped by Ctrl-Z, or a scheduler's SIGTSTP, does not count; nor does a machine's sleep.

    Args:
      seconds: the longest time from step to step.
      first_seconds: the same for the first step of a process, which may compile.

    Raises:
      ValueError: a time is not positive.
    """

    def __init__(self, *, seconds: float = 600.0, first_seconds: float = 1800.0) -> None:
        self.check_arguments(seconds=seconds, first_seconds=first_seconds)
        self.seconds = seconds
        self.first_seconds = first_seconds
        self._file: IO[str]  # while it observes
        self._begun = False
        self._longest = first_seconds

    @staticmethod
    def check_arguments(*, seconds: float, first_seconds: float) -> None:
        """Raises ValueError unless both times are positive, and a clock can wait for them."""
        if not (0 < seconds <= _A_YEAR and 0 < first_seconds <= _A_YEAR):
            raise ValueError(
                f"{seconds=} and {first_seconds=} must be more than 0 seconds, and a year at most."
            )

    @contextlib.contextmanager
    def observing(self, run: RunDirectory, parallel: DataParallel) -> Iterator[None]:
        path = run.path / "stacks" / f"rank{parallel.rank}.txt"
        self._begun = False
        with _opened(path) as self._file, self._pausing():
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
        # Another rank may still have its own there, or somebody has removed it all.
        with contextlib.suppress(OSError):
            if not path.stat().st_size:
                path.unlink()
                path.parent.rmdir()

    @contextlib.contextmanager
    def stepping(self, step: int) -> Iterator[None]:
        self._longest = self.seconds if self._begun else self.first_seconds
        self._begun = True
        self._watch()
        yield

    def _watch(self) -> None:
        faulthandler.dump_traceback_later(self._longest, file=self._file, exit=True)

    @contextlib.contextmanager
    def _pausing(self) -> Iterator[None]:
        """Inside, whoever stops the process from a terminal stops this clock as well."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are the main thread's
            return
        before = signal.signal(signal.SIGTSTP, self._pause)
        try:
            yield
        finally:
            signal.signal(signal.SIGTSTP, before)

    def _pause(self, number: int, frame: FrameType | None) -> None:
        faulthandler.cancel_dump_traceback_later()
        own = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # it is here that the process stands until it goes on
        signal.signal(number, own)
        if self._begun:
            self._watch()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """The file for stacks, behind those of an earlier process; or standard error."""
    try:
        path.parent.mkdir(exist_ok=True)
        file = path.open("a")
    except OSError as error:
        tell(
            f"warning: {path} cannot be written ({error.strerror}): the stacks of a run that hangs "
            "would come here."
        )
        yield cast("IO[str]", sys.__stderr__)
        return
    with file:
        if file.tell():  # it could not say so itself
            tell(f"{path} says where an earlier process hung, and so was ended by its watchdog.")
        yield file
