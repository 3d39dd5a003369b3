"""One sweep that is disturbed, and what must hold of it."""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from faults.moments import Act, Place
from faults.processes import PATIENCE, Ended, Process
from faults.results import Wrong
from faults.sweeps.children import ForkedPoint, Journal, children_of
from faults.sweeps.results import (
    SweepResult,
    refuse_other,
    refuse_second_training,
    sweep_result,
)
from fidgpt.cli import sweep
from fidgpt.sweep.runners import local

_POLL = 0.003


class Known(NamedTuple):
    """A sweep that is known.

    Attributes:
      arguments: of the command.
      result: of the undisturbed sweep.
      num_steps: that all points make together.
      may_be_side_by_side: whether its points do not depend on each other.
    """

    arguments: Sequence[str]
    result: SweepResult
    num_steps: int
    may_be_side_by_side: bool


class SweepCase:
    """A sweep in a directory of its own.

    Args:
      known: which one.
      folder: where its outputs and journal lie.
      draw: all that is left to chance.
      run: the sweep's directory, if it is not to lie in the folder.

    Attributes:
      refused: the first `error:` that a command ended with.
      journal: what its points did.
      num_jobs: how many of them run side by side.
      lost: names of points that somebody removed.
      listen: called first in each process.
    """

    def __init__(
        self, known: Known, folder: Path, draw: random.Random, *, run: Path | None = None
    ) -> None:
        self.known = known
        self.folder = folder
        self.draw = draw
        self.run = run or folder / "sweep"
        self.refused: str | None = None
        self.lost: set[str] = set()
        self.listen: Callable[[], None] = lambda: None
        folder.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(folder / "journal")
        self.num_jobs = draw.choice([1, 2]) if known.may_be_side_by_side else 1
        self._pause = draw.choice([0.02, 0.2])
        self._num_started = 0
        self._alive: list[Process] = []

    def start(self, *flags: str, place: Place | None = None, act: Act | None = None) -> Process:
        """Begins the sweep, or goes on with it, disturbed at a place in the driver."""
        self._num_started += 1

        def disturbed() -> None:
            self.listen()
            local.Popen = self._forked
            local._PAUSE = self._pause
            if place is not None and act is not None:
                place.arm(act, self.run)

        driver = Process(
            [*self.known.arguments, f"--run_dir={self.run}", *flags],
            output=self.folder / f"output-{self._num_started}",
            disturbed=disturbed,
            command=sweep.run,
        )
        self._alive.append(driver)
        return driver

    def _forked(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: IO[bytes],
        stderr: int,
        env: dict[str, str],
        start_new_session: bool,
    ) -> ForkedPoint:
        return ForkedPoint(
            command, journal=self.journal, listen=self.listen, stdout=stdout, env=env
        )

    def wait(self, driver: Process) -> None:
        """Lets the sweep go on until some moment, or its driver's end."""
        begun = self.journal.num_steps()
        left = max(1, self.known.num_steps - begun)
        until = begun + self.draw.randrange(left)
        self.wait_until(driver, lambda: self.journal.num_steps() >= until)
        time.sleep(self.draw.uniform(0, 0.15))

    def wait_until(self, driver: Process, condition: Callable[[], object]) -> None:
        """Lets the sweep go on until something holds, or its driver's end."""
        while not condition() and not driver.has_ended():
            time.sleep(_POLL)

    def end(self, driver: Process, *statuses: int) -> Ended:
        """Waits for the end of a driver.

        Raises:
          Wrong: it ended with a traceback, or without a word, or with another status.
        """
        ended = driver.end()
        self._alive.remove(driver)
        if "Traceback" in ended.output:
            raise Wrong(f"a traceback, status {ended.status}:\n{ended.output[-3000:]}")
        if ended.status == 2:
            lines = [line for line in ended.output.splitlines() if line.startswith("error: ")]
            if len(lines) != 1:
                raise Wrong(f"{len(lines)} errors are said:\n{ended.output[-3000:]}")
            self.refused = self.refused or lines[0]
        if ended.status not in statuses:
            wanted = " or ".join(map(str, statuses))
            raise Wrong(f"status {ended.status} instead of {wanted}:\n{ended.output[-3000:]}")
        return ended

    def orphans(self) -> list[int]:
        """Points whose driver is gone; they became this process's children."""
        known = {driver.pid for driver in self._alive}
        return [pid for pid in children_of(os.getpid()) if pid not in known]

    def kill_orphans(self) -> None:
        """SIGKILL to all of those."""
        for pid in self.orphans():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def finish(self) -> None:
        """Goes on undisturbed to the end, and compares; then once more, which does nothing.

        Raises:
          Wrong: it does not get there, or something differs.
        """
        self.end(self.start(), 0)
        self.await_orphans()
        found = sweep_result(self.run)
        refuse_other(found, self.known.result)
        lines = self.journal.lines()
        refuse_second_training(lines, lost=self.lost)
        self.end(self.start(), 0)
        refuse_other(sweep_result(self.run), self.known.result)
        if self.journal.lines() != lines:
            raise Wrong(f"a sweep that is done trains: {self.journal.lines()[len(lines) :]}")

    def await_orphans(self) -> None:
        """Waits for what was left behind, which must be ending.

        Raises:
          Wrong: it does not end.
        """
        deadline = time.monotonic() + PATIENCE
        while left := self.orphans():
            for pid in left:
                os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > deadline:
                self.kill_orphans()
                raise Wrong(f"processes {left} are left behind")
            time.sleep(_POLL)

    def end_all(self) -> None:
        """Kills what still runs of a case that went wrong."""
        for driver in self._alive:
            os.kill(driver.pid, signal.SIGKILL)
            driver.end()
        self._alive.clear()
        self.kill_orphans()
