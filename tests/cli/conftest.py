"""Commands in this process: their flags parsed, run to their end, and all put back."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from absl import flags
from absl.testing import flagsaver

from fidgpt.cli import app, train
from fidgpt.compose import index
from fidgpt.compose.index_build import build_index, write
from fidgpt.sweep.runners import jobs


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
        flags.FLAGS.unparse_flags()  # for a command that runs another one
        with flagsaver.flagsaver():
            try:
                status = app.call(main, app.parse_flags(sys.argv)[1:])
            except SystemExit as exit_:
                status = int(exit_.code or 0)
        flags.FLAGS.unparse_flags()
        written = capsys.readouterr()
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


@pytest.fixture
def run_directory(command: Command, tmp_path: Path) -> Path:
    """A run of two steps, with its seed changed."""
    path = tmp_path / "run"
    flags = ("--config=set:num_steps=2", "--config=set:samples=None", "--config=set:seed=7")
    assert command(train.main, "--config=config:debug", *flags, f"--run_dir={path}").status == 0
    return path


@pytest.fixture
def run(run_directory: Path) -> str:
    """The same run, as one names it on the command line."""
    return str(run_directory)
