"""Python processes that begin at once: forked from one that has imported what commands import."""

import gc
import io
import multiprocessing
import os
import runpy
import socket
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import connection
from pathlib import Path

import pytest
import torch

import fidgpt

_SERVER = multiprocessing.get_context("forkserver")
# None of these defines flags, which belong to one command only.
_SERVER.set_forkserver_preload(
    [
        "pytest",
        "fidgpt.fiddlers",
        "fidgpt.configs",
        "fidgpt.interop",
        "fidgpt.compose.catalogue",
        "fidgpt.compose.directives",
        "fidgpt.compose.runs",
        "torch.distributed.checkpoint.default_planner",
        "fidgpt.train.summary_text",
        "rich.progress",
        "rich.table",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "measured",
    ]
)


class Python:
    """`python ARGUMENTS`, in a process that has imported torch before.

    Args:
      arguments: a script, or `-m` and a module, and its arguments.
      output: file for its stdout and stderr; overwritten.
      printed: file for what it prints without errors, if that is to be another one.
      directory: its working directory; the current one by default.
      environment: all its variables; those of this process by default.
      first: called in it before the program, by which pickle finds it.

    Attributes:
      process: which may be asked how it is.
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
        self.process = _SERVER.Process(
            target=_become,
            args=(
                [str(word) for word in arguments],
                (printed or output, output),
                directory or Path.cwd(),
                dict(os.environ if environment is None else environment),
                first,
            ),
        )
        with pytest.MonkeyPatch.context() as patch:  # the server starts with its first process
            patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
            self.process.start()

    def send_signal(self, number: int) -> None:
        """Sends a signal to it, wherever it is."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self, *, seconds: float) -> int:
        """Waits for its end; returns its status, that of SIGKILL where it took too long."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text(encoding="utf-8") if self._output.exists() else ""


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
    while alive and time.monotonic() < deadline and not any(one.process.exitcode for one in ranks):
        connection.wait([one.process.sentinel for one in alive], deadline - time.monotonic())
        alive = [one for one in alive if one.process.is_alive()]
    statuses = [rank.end(seconds=0) for rank in ranks]
    outputs = [rank.output for rank in ranks]
    assert not any(statuses), f"{statuses}\n" + "\n".join(text[-3000:] for text in outputs)
    return outputs


def python_path(*folders: Path) -> str:
    """`PYTHONPATH` of other processes: these folders, then that of the code under test."""
    return os.pathsep.join(map(str, [*folders, Path(fidgpt.__file__).parents[1]]))


def variables_of_ranks(number: int) -> list[dict[str, str]]:
    """The variables that torchrun gives to each of several processes."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
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


def _become(
    arguments: list[str],
    outputs: tuple[Path, Path],
    directory: Path,
    environment: dict[str, str],
    first: Callable[[], None] | None,
) -> None:
    """What `python ARGUMENTS` does, in this process, its outputs in files."""
    gc.freeze()  # or it looks through all of torch for garbage
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    if "OMP_NUM_THREADS" in environment:  # which torch looks at when it is imported
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    for stream, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
    sys.stdout, sys.stderr = _lines_to(1), _lines_to(2)
    if first is not None:
        first()
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if arguments[0] == "-m":
        sys.path[:0] = [str(directory), *paths]
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[:0] = [str(Path(arguments[0]).parent), *paths]
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


def _lines_to(descriptor: int) -> io.TextIOWrapper:
    """A stream that writes each line at once, so that both outputs keep their order."""
    file = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(file), "utf-8", line_buffering=True)
