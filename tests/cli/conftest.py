"""Commands in this process: their flags parsed, run to their end, and all put back."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from absl import flags
from absl.testing import flagsaver

from fidgpt import forking
from fidgpt.cli import app, sweep, train
from fidgpt.compose import index
from fidgpt.compose.index_build import build_index, write
from fidgpt.sweep.runners import jobs
from fidgpt.train import device


class Outcome(NamedTuple):
    """How a command ended and what it wrote."""

    status: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`command(main, "--flag", ...)` does what the shell would, without a new process."""

    def run(main: Any, *arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["command", *arguments])
        if device.VARIABLE not in os.environ:  # the end of the test unsets what --hardware sets
            monkeypatch.setenv(device.VARIABLE, "")
            monkeypatch.delenv(device.VARIABLE)
        outer = capsys.readouterr() if flags.FLAGS.is_parsed() else None  # of a command around it
        flags.FLAGS.unparse_flags()
        with flagsaver.flagsaver():
            try:
                takes = main in (train.main, sweep.main)
                words = app.parse_flags(sys.argv, takes_directives=takes)
                status = app.call(main, words[1:])
            except SystemExit as exit_:
                status = int(exit_.code or 0)
        flags.FLAGS.unparse_flags()
        written = capsys.readouterr()
        if outer is not None:
            flags.FLAGS.mark_as_parsed()
            sys.stdout.write(outer.out)
            sys.stderr.write(outer.err)
        return Outcome(status, written.out, written.err)

    return run


@pytest.fixture
def processes(command: Command, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines of the processes that were started; each runs at once, in this one."""
    lines: list[list[str]] = []

    class Process:
        def __init__(self, line: list[str], **options: Any) -> None:
            assert line[1:3] == ["-m", "fidgpt.cli.train"]
            lines.append(line)
            outcome = command(train.main, *line[3:])
            options["stdout"].write(outcome.err.encode())
            options["stdout"].flush()
            self._status = outcome.status

        def poll(self) -> int:
            return self._status

    monkeypatch.setattr(jobs, "Popen", Process)
    monkeypatch.setattr(jobs.LocalRunner, "pause", 0.0)
    monkeypatch.setattr(forking, "is_safe", lambda: False)
    return lines


@pytest.fixture(scope="session")
def index_for(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., index.Index]]:
    """`index.index_for` with a cache of its own, and indexes built in this process."""

    def build(directive: str, allowed: Sequence[str] = ()) -> index.Index:
        built, path = build_index([directive], allowed), index.index_path(directive, allowed)
        assert path
        write(path, built)
        return built

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIDGPT_CACHE", str(tmp_path_factory.mktemp("index")))
        patch.setattr(index, "build", build)
        index.index_for([])
        yield index.index_for


@pytest.fixture(scope="session")
def finished_runs() -> dict[tuple[str, ...], Path]:
    """Runs that were trained for a test, by their flags."""
    return {}


@pytest.fixture
def finished(
    command: Command,
    finished_runs: dict[tuple[str, ...], Path],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Path]:
    """`finished("--flag", ...)` is a run with these flags: trained once, and copied for a test."""

    def copied(*flags: str) -> Path:
        if flags not in finished_runs:
            path = tmp_path_factory.mktemp("finished") / "run"
            assert command(train.main, *flags, f"--run_dir={path}").status == 0
            finished_runs[flags] = path
        return Path(shutil.copytree(finished_runs[flags], tmp_path / "run"))

    return copied


@pytest.fixture
def run_directory(finished: Callable[..., Path]) -> Path:
    """A run of two steps, with its seed changed."""
    changes = ("config:debug", "set:num_steps=2", "set:samples=None", "set:seed=7")
    return finished(*(f"--config={one}" for one in changes))


@pytest.fixture
def run(run_directory: Path) -> str:
    """The same run, as one names it on the command line."""
    return str(run_directory)
