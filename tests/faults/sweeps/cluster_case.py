"""Sweeps on a cluster that are disturbed, what strikes them, and what must hold of them."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from faults.runs import Wrong, refuse_difference, result_of
from faults.sweeps import mixed, toy
from faults.sweeps.cases import (
    DONE,
    Journal,
    Known,
    SweepResult,
    Trained,
    plain_rows,
    refuse_second_training,
    sheet_of,
)

_TOY_STEPS = list(range(1, toy.NUM_STEPS + 1))


def refuse_other(
    directory: Path, lines: Sequence[Trained], expected: SweepResult, *, real: Collection[str]
) -> None:
    """Raises Wrong where a sweep differs from the undisturbed one, or did anything twice.

    Args:
      directory: of the sweep.
      lines: of the journal.
      expected: of the undisturbed sweep, whose points were all trained.
      real: names of those that were trained here too.
    """
    rows = {row["directory"]: row for row in plain_rows(directory)}
    wanted = {row["directory"]: dict(row) for row in expected.rows}
    sheet = [row["name"] for row in sheet_of(directory)]
    if rows.keys() != wanted.keys() or sheet != [row["name"] for row in expected.rows]:
        raise Wrong(f"the results have rows of {sorted(rows)} and {sheet}")
    for name, row in wanted.items():
        if name not in real:
            row["metrics"] = toy.LAST
        if rows[name] != row:
            raise Wrong(f"{name}: the row is {rows[name]} instead of {row}")
        if name in real:
            refuse_difference(result_of(directory / name), expected.runs[name])
        else:
            _refuse_other_toy(directory / name, lines)
    refuse_second_training(lines, lost=set())


def _refuse_other_toy(directory: Path, lines: Sequence[Trained]) -> None:
    rows = (directory / "metrics.jsonl").read_text().splitlines()
    own = [one.what for one in lines if one.point == directory.name and one.what != DONE]
    for steps in ([json.loads(row)["step"] for row in rows], list(map(int, own))):
        if steps != _TOY_STEPS:
            raise Wrong(f"{directory.name} saved the steps {own}, and has rows {rows}")
    if (mark := json.loads((directory / "done.json").read_text())) != toy.LAST:
        raise Wrong(f"{directory.name}: done.json is {mark} instead of {toy.LAST}")


NUM_REAL = 3  # points that are trained; toys stand in for the others
_JOBS = 4
_PATIENCE = 240.0  # seconds for a case, on a machine that may be busy
_STATUSES = (0, 1, 130, -signal.SIGKILL, -signal.SIGTERM)
_POLL = 0.2


class Cluster(Protocol):
    """Where points run.

    Attributes:
      runner: what the command is given for it.
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
        """Let the sweep continue until a random moment; start the command again if it has ended.

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

    def signal_driver(self, number: int) -> bool:
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
                    words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                except OSError:
                    continue
                if any(str(self.folder) in one for one in words):
                    found[int(entry.name)] = words
        return found

    def points(self) -> list[int]:
        """The processes that train, or stand in for one that does."""
        trains = [[toy.__file__], ["-m", "fidgpt.cli.train"]]
        return [
            pid
            for pid, words in self.processes().items()
            if any(words[1 : 1 + len(one)] == one for one in trains)
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


_STEPS = 100  # of toys, somewhat more than a sweep has: it may end before all strikes have come


ClusterKind = Callable[[ClusterCase], None]


# Returns what it did, in a few words; "" where there was nothing to strike.
ClusterStrike = Callable[[ClusterCase], str]


class Absent(Exception):
    """There is no such cluster here; the message has the reason."""


def struck(*drawn: ClusterStrike, times: tuple[int, ...]) -> ClusterKind:
    """So many of several strikes, each at a moment of chance."""

    def kind(case: ClusterCase) -> None:
        num_strikes = case.draw.choice(times)
        for _ in range(num_strikes):
            case.wait(_STEPS // num_strikes)
            case.strikes[case.draw.choice(drawn)(case)] += 1
        case.finish()

    return kind


def driver_signalled(*numbers: int) -> ClusterStrike:
    """One of some signals to the driver, which ends."""

    def strike(case: ClusterCase) -> str:
        number = case.draw.choice(numbers)
        was_there = case.signal_driver(number)
        return f"{signal.Signals(number).name} to the driver" if was_there else ""

    return strike


def point_killed(case: ClusterCase) -> str:
    """SIGKILL of a process that trains, or of a toy."""
    return "point killed" if (found := case.points()) and kill(case.draw.choice(found)) else ""


def kill(pid: int) -> bool:
    """SIGKILL, unless it has just ended; returns whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False
