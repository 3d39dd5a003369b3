"""An observer that ends a run which hangs, and says where each of its threads stands."""

import contextlib
import faulthandler
from collections.abc import Iterator
from typing import Any

from fidgpt.parallel import DataParallel
from fidgpt.train.run import RunDirectory


class Watchdog:
    """Ends this process where the next step takes too long to come.

    The time runs from the beginning of a step to that of the next one, so what lies between them,
    as evaluating and saving, counts. The stacks of all threads go to `stacks/rank0.txt` in the run
    directory, each process writing its own, and the process leaves at once with status 1: a
    scheduler, or `torchrun --max-restarts`, starts it again. It is a thread of the interpreter
    below Python, so it wakes where all of Python waits for a lock too.

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
        self._file: Any = None
        self._begun = False

    @staticmethod
    def check_arguments(*, seconds: float, first_seconds: float) -> None:
        """Raises ValueError unless both times are positive."""
        if seconds <= 0 or first_seconds <= 0:
            raise ValueError(f"{seconds=} and {first_seconds=} must be more than 0 seconds.")

    @contextlib.contextmanager
    def observing(self, run: RunDirectory, parallel: DataParallel) -> Iterator[None]:
        path = run.path / "stacks" / f"rank{parallel.rank}.txt"
        path.parent.mkdir(exist_ok=True)
        self._begun = False
        with path.open("a") as self._file:  # after those of an earlier process
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
        if not path.stat().st_size:
            path.unlink()
            with contextlib.suppress(OSError):  # another rank still has its own there
                path.parent.rmdir()

    @contextlib.contextmanager
    def stepping(self, step: int) -> Iterator[None]:
        longest = self.seconds if self._begun else self.first_seconds
        self._begun = True
        faulthandler.dump_traceback_later(longest, file=self._file, exit=True)
        yield
