"""Where a command's output goes nowhere: a reader who has seen enough, and a disk without room."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Any

import pytest

from fidgpt.cli import app

Main = Callable[[list[str]], int]
Command = Callable[..., Any]


def pipe_without_reader() -> IO[str]:
    """A pipe whose reader has gone."""
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w")


def full_disk() -> IO[str]:
    """A file that takes no byte."""
    return open("/dev/full", "w")


def answering(status: int, *, flush: bool, text: str = "a line") -> Main:
    """A command that prints, and ends so."""

    def main(arguments: list[str]) -> int:
        print(text, flush=flush)
        return status

    return main


@pytest.mark.parametrize("text", ["a line", "a page\n" * 10_000])
@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize(("output", "ends"), [(pipe_without_reader, 0), (full_disk, app.MISTAKE)])
def test_what_cannot_be_printed_ends_without_a_traceback(
    output: Callable[[], IO[str]],
    ends: int,
    *,
    flush: bool,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
) -> None:
    with output() as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        done = command(answering(0, flush=flush, text=text))
        nowhere.write("more")  # as the interpreter's end would write what is left
    assert done.status == ends
    assert done.err.count("error: standard output cannot be written (No space left") == bool(ends)


@pytest.mark.parametrize("output", [pipe_without_reader, full_disk])
def test_the_exit_status_of_a_run_is_kept(
    output: Callable[[], IO[str]], monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    with output() as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        assert command(answering(143, flush=False)).status == 143


def test_another_error_of_the_system_is_no_word_about_output(command: Command) -> None:
    def main(arguments: list[str]) -> int:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        command(main)


def test_without_docstrings_nothing_begins() -> None:
    command = [sys.executable, "-OO", "-m", "fidgpt.plot", "runs/none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (app.MISTAKE, "")
    assert done.stderr.startswith("error: Python runs with -OO")
