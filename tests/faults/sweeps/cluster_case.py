"""One sweep on a cluster that is disturbed, and what must hold of it."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from faults.results import Wrong
from faults.sweeps import mixed, toy
from faults.sweeps.cases import Known
from faults.sweeps.children import Journal
from faults.sweeps.cluster_results import refuse_other

NUM_REAL = 3  # points that are trained; toys stand in for the others
_JOBS = 4
_PATIENCE = 240.0  # seconds for a case, on a machine that may be busy
_STATUSES = (0, 1, 130, -signal.SIGKILL, -signal.SIGTERM)
_POLL = 0.2


class Cluster(Protocol):
    """Where points run.

    Attributes:
      runner: what the command is told of it.
      environment: variables by which the command finds it.
    """

    runner: str
    environment: Mapping[str, str]

    def hurry(self) -> None:
        """Lets nothing wait for as long as a large cluster would."""
        ...

    def is_idle(self) -> bool:
        """Whether nothing runs there, and nothing waits."""
        ...


class ClusterCase:
    """A sweep in a directory of its own.

    Args:
      known: which one, as it ended undisturbed on this machine.
      cluster: where its points run.
      folder: where all of it lies.
      draw: all that is left to chance.
      strikes: how often was done what, over all cases.

    Attributes:
      run: the directory of the sweep.
      refused: no command may end with an `error:`, so None.
      journal: what the toys did.
      real: names of the points that are trained.
    """

    def __init__(
        self,
        known: Known,
        cluster: Cluster,
        folder: Path,
        draw: random.Random,
        *,
        strikes: Counter[str],
    ) -> None:
        self.known = known
        self.cluster = cluster
        self.folder = folder
        self.draw = draw
        self.strikes = strikes
        self.run = folder / "sweep"
        self.refused: str | None = None
        folder.mkdir(parents=True)
        self.journal = Journal(folder / "journal")
        self.real = draw.sample(sorted(known.result.runs), NUM_REAL)
        self._deadline = time.monotonic() + _PATIENCE
        self._driver: subprocess.Popen[bytes] | None = None
        self._num_started = 0

    def start(self) -> None:
        """Says the command, for the first time or again."""
        self._num_started += 1
        with self._output.open("wb") as output:
            self._driver = subprocess.Popen(
                [
                    *(sys.executable, "-m", mixed.__name__),
                    *(str(self.journal.path), ",".join(self.real), *self.known.arguments),
                    *(f"--run_dir={self.run}", f"--runner={self.cluster.runner}"),
                    *(f"--jobs={_JOBS}", f"--retries={self.draw.choice([0, 1])}"),
                ],
                env=os.environ | self.cluster.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait(self, most: int = 25) -> None:
        """Lets the sweep go on until some moment; the command is said again if it has ended.

        Args:
          most: so many further steps of toys.
        """
        if not self._runs():
            if self._driver is not None:
                self.end()
            self.start()
        until = len(self.journal.lines()) + self.draw.randint(1, most)
        self._wait_until(lambda: len(self.journal.lines()) >= until or not self._runs())
        time.sleep(self.draw.uniform(0, 0.5))

    def tell_driver(self, number: int) -> bool:
        """Sends the driver a signal, and waits for its end; returns whether it was there."""
        assert self._driver is not None
        was_there = self._runs()
        self._driver.send_signal(number)
        self.end()
        return was_there

    def end(self) -> int:
        """Waits for the end of the driver; returns its status.

        Raises:
          Wrong: it does not end, or not as it may.
        """
        assert self._driver is not None
        self._wait_until(lambda: not self._runs())
        status, text = self._driver.wait(), self._output.read_text(errors="replace")
        if "Traceback" in text or status not in _STATUSES:
            raise Wrong(f"status {status}, in {self._output}:\n{text[-3000:]}")
        return status

    def finish(self) -> None:
        """Says the command until all is done, and looks; then once more, which does nothing.

        Raises:
          Wrong: something is lost, was made twice, differs, or runs on.
        """
        self.wait()
        while self.end():
            self.start()
        self._wait_until(lambda: not self.processes() and self.cluster.is_idle())
        lines = self.journal.lines()
        refuse_other(self.run, lines, self.known.result, real=self.real)
        self.start()
        if (status := self.end()) or self.journal.lines() != lines:
            raise Wrong(f"a sweep that is done trains, or ends with status {status}")

    def processes(self) -> dict[int, list[str]]:
        """The arguments of each process that has to do with this sweep, but this one."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    said = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                except OSError:
                    continue
                if any(str(self.folder) in one for one in said):
                    found[int(entry.name)] = said
        return found

    def points(self) -> list[int]:
        """The processes that train, or stand in for one that does."""
        trains = [[toy.__file__], ["-m", "fidgpt.cli.train"]]
        return [
            pid
            for pid, said in self.processes().items()
            if any(said[1 : 1 + len(one)] == one for one in trains)
        ]

    def end_all(self) -> None:
        """Kills what still runs of a case that went wrong."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)

    @property
    def _output(self) -> Path:
        return self.folder / f"output-{self._num_started}"

    def _runs(self) -> bool:
        return self._driver is not None and self._driver.poll() is None

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.cluster.hurry()
            if time.monotonic() > self._deadline:
                raise Wrong(f"not done in {_PATIENCE:g} s; left are {self.processes()}")
            time.sleep(_POLL)
