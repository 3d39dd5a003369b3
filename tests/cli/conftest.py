"""Commands in this process: their flags parsed, run to their end, and all put back."""

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from absl import flags
from absl.testing import flagsaver

from fidgpt.cli import app


class Outcome(NamedTuple):
    """How a command ended and what it wrote."""

    status: int
    out: str
    err: str


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Outcome]]:
    """`command(main, "--flag", ...)` does what the shell would, without a new process."""

    def run(main: Any, *arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["command", *arguments])
        flags.FLAGS.unparse_flags()  # for a command that runs another one
        try:
            status = app._guarded(main, app._parse(sys.argv)[1:])
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        finally:
            flags.FLAGS.unparse_flags()
        written = capsys.readouterr()
        return Outcome(status, written.out, written.err)

    with flagsaver.flagsaver():
        yield run
