"""Where a command's output goes nowhere: a reader who has seen enough, and a disk without room."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Any

import pytest

from fidgpt.cli import app

Command = Callable[..., Any]


def pipe_without_reader() -> IO[str]:
    """A pipe whose reader has gone."""
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w")


def full_disk() -> IO[str]:
    """A file that takes no byte."""
    return open("/dev/full", "w")


@pytest.mark.parametrize("text", ["a line", "a page\n" * 10_000])
@pytest.mark.parametrize(
    ("output", "flush", "status", "ends"),
    [
        *((pipe_without_reader, flush, 0, 0) for flush in (False, True)),
        *((full_disk, flush, 0, app.MISTAKE) for flush in (False, True)),
        *((output, None, 143, 143) for output in (pipe_without_reader, full_disk)),
    ],
)
def test_what_cannot_be_printed_ends_without_a_traceback(
    output: Callable[[], IO[str]],
    text: str,
    flush: bool | None,
    status: int,
    ends: int,
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
) -> None:
    def main(arguments: list[str]) -> int:
        print(text if flush is not None else "a line", flush=bool(flush))
        return status

    with output() as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        done = command(main)
        nowhere.write("more")  # as the interpreter's end would write what is left
    assert done.status == ends
    is_reported = ends == app.MISTAKE
    assert done.err.count("error: standard output cannot be written (No space") == is_reported


def test_another_error_of_the_system_is_not_about_output(command: Command) -> None:
    def main(arguments: list[str]) -> int:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        command(main)


def test_without_docstrings_nothing_begins() -> None:
    command = [sys.executable, "-OO", "-m", "fidgpt.plot", "runs/none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (app.MISTAKE, "")
    assert done.stderr.startswith("error: Python -OO strips")
