"""The points of a sweep as forks of its driver, and a journal of what each of them trains."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from faults.processes import Command, become
from fidgpt.cli import train
from fidgpt.train import Trainer

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DONE = "done"
_BEGIN = [sys.executable, "-m", train.__name__]


class Trained(NamedTuple):
    """A line of the journal.

    Attributes:
      point: the name of its run directory.
      pid: the process.
      what: the step that begins, or "done".
    """

    point: str
    pid: int
    what: str


class Journal:
    """What the points of a sweep do, written down from inside of their processes.

    Args:
      path: a file, outside of what may be disturbed.

    Attributes:
      path: the same.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.touch()

    def note(self, point: str, what: str) -> None:
        """Adds a line of this process's."""
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{point} {os.getpid()} {what}\n".encode())

    def lines(self) -> list[Trained]:
        """All that was noted so far."""
        fields = [line.split() for line in self.path.read_text().splitlines()]
        return [Trained(point, int(pid), what) for point, pid, what in fields]

    def num_steps(self) -> int:
        """Steps that were begun so far, those that were done again included."""
        return sum(line.what.isdecimal() for line in self.lines())


class ForkedPoint:
    """What `Popen` is to a driver, of a child that need not import torch first.

    Args:
      command: the training command.
      journal: is told of its steps.
      listen: called first in the child.
      stdout: takes what it prints.
      env: its variables.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        journal: Journal,
        listen: Callable[[], None],
        stdout: IO[bytes],
        env: Mapping[str, str],
    ) -> None:
        assert list(command[:3]) == _BEGIN, command
        self.returncode: int | None = None

        def begin() -> None:
            os.setsid()
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.dup2(stdout.fileno(), 1)
            os.dup2(stdout.fileno(), 2)
            _forget_files()
            os.environ.clear()
            os.environ.update(env)
            listen()

        # As in a new process, no signal is taken by what the driver does on it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self.pid = os.fork()
        if self.pid == 0:
            become(_watched(journal, command[3:]), command[3:], begin=begin)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def poll(self) -> int | None:
        """The status with which it ended; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _forget_files() -> None:
    """Lets go of files, and so of locks, as a new process would that inherits none."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for handle in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the listing's own is closed already
            if handle > 2:
                os.dup2(nowhere, handle, inheritable=False)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and not taken leave of."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _watched(journal: Journal, arguments: Sequence[str]) -> Command:
    """The training command, whose steps and end are noted."""
    said = [one.partition("=")[2] for one in arguments if one.startswith(("--run_dir", "--resume"))]
    point = Path(said[-1]).name
    update = Trainer.update

    def noted(self: Trainer, state: Any, batch: Any) -> Any:
        journal.note(point, str(state.step + 1))
        return update(self, state, batch)

    def command() -> None:
        Trainer.update = noted
        try:
            train.run()
        except SystemExit as leaving:
            if not leaving.code:
                journal.note(point, DONE)
            raise

    return command
