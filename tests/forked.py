"""Python processes that begin at once: forked from one that has imported what commands import."""

import functools
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

import fork_server
from fork_server import Program

import fidgpt

_SERVER = Path(fork_server.__file__)
_PATIENCE = 60.0  # seconds until the server listens, which it does before it imports anything


class Python:
    """`python ARGUMENTS`, in a process that has imported torch before.

    Args:
      arguments: a script, or `-m` and a module, and its arguments.
      output: file for its stdout and stderr; overwritten.
      printed: file for what it prints without errors, if that is to be another one.
      directory: its working directory; the current one by default.
      environment: all its variables; those of this process by default.
      first: called in it before the program, by which pickle finds it.
    """

    def __init__(
        self,
        *arguments: str | Path,
        output: Path,
        printed: Path | None = None,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        first: Callable[[], None] | None = None,
    ) -> None:
        output.unlink(missing_ok=True)
        self._output = output
        program = Program(
            [str(word) for word in arguments],
            (printed or output, output),
            directory or Path.cwd(),
            dict(os.environ if environment is None else environment),
            sys.path,
            first,
        )
        _be_there()
        self._connection = _connected()
        self._connection.send_bytes(pickle.dumps(program))
        self.pid: int = self._connection.recv()
        self._status: int | None = None

    def send_signal(self, number: int) -> None:
        """Sends a signal to it, wherever it is."""
        if self.status is None:
            os.kill(self.pid, number)

    @property
    def status(self) -> int | None:
        """That with which it ended; None while it runs."""
        if self._status is None and self._connection.poll():
            self._status = self._connection.recv()
        return self._status

    def end(self, *, seconds: float) -> int:
        """Waits for its end; returns its status, that of SIGKILL where it took too long."""
        wait_for([self], seconds)
        self.send_signal(signal.SIGKILL)
        wait_for([self], None)
        assert self.status is not None
        return self.status

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text(encoding="utf-8") if self._output.exists() else ""


def wait_for(processes: Sequence[Python], seconds: float | None) -> None:
    """Waits until one of some processes has ended, or for so long."""
    if all(process.status is None for process in processes):
        wait([process._connection for process in processes], seconds)


def run_program(program: str, *, folder: Path, seconds: float = 300.0) -> str:
    """Runs a text of Python, without the checks of types of tests; returns what it prints.

    Args:
      program: its text, which fails the test where it raises.
      folder: for its file and its output.
      seconds: that it may take.
    """
    (folder / "program.py").write_text(program, encoding="utf-8")
    process = Python(folder / "program.py", output=folder / "output")
    status = process.end(seconds=seconds)
    assert status == 0, f"{status}\n{process.output[-3000:]}"
    return process.output


def run_ranks(
    number: int, *arguments: str | Path, folder: Path, seconds: float = 300.0
) -> list[str]:
    """Runs so many processes that share their work, as torchrun would; returns what they print.

    Where one of them fails, the others are ended and the test fails.

    Args:
      number: of processes.
      arguments: of each, as of `Python`.
      folder: for their outputs.
      seconds: that they may take.
    """
    ranks = [
        Python(*arguments, output=folder / f"output{rank}", environment=os.environ | variables)
        for rank, variables in enumerate(variables_of_ranks(number))
    ]
    deadline = time.monotonic() + seconds
    alive = ranks
    while alive and time.monotonic() < deadline and not any(rank.status for rank in ranks):
        wait_for(alive, deadline - time.monotonic())
        alive = [process for process in alive if process.status is None]
    statuses = [rank.end(seconds=0) for rank in ranks]
    outputs = [rank.output for rank in ranks]
    assert not any(statuses), f"{statuses}\n" + "\n".join(text[-3000:] for text in outputs)
    return outputs


def python_path(*folders: Path) -> str:
    """`PYTHONPATH` of other processes: these folders, then that of the code under test."""
    return os.pathsep.join(map(str, [*folders, Path(fidgpt.__file__).parents[1]]))


def variables_of_ranks(number: int) -> list[dict[str, str]]:
    """The variables that torchrun gives to each of several processes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(number),
            "LOCAL_WORLD_SIZE": str(number),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        for rank in range(number)
    ]


@functools.cache
def _be_there() -> Connection:
    """Let the server know of this process, once, and start it if there is none."""
    connection = _connected()
    connection.send_bytes(fork_server.HERE)
    return connection


def _connected() -> Connection:
    """Connect to the server of all workers, which is started if there is none."""
    address = f"fidgpt-tests-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    deadline, is_started = time.monotonic() + _PATIENCE, False
    while True:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(f"\0{address}")
        except ConnectionRefusedError:
            made.close()
            if time.monotonic() > deadline:
                raise
            if not is_started:
                is_started = True
                _start(address)
            time.sleep(0.02)
        else:
            return Connection(made.detach())


def _start(address: str) -> None:
    """Start the server, which ends by itself: no one waits for it."""
    os.posix_spawn(
        sys.executable,
        [sys.executable, str(_SERVER), address],
        os.environ | {"PYTHONPATH": python_path()},
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
    )
