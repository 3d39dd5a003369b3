"""The flag --averaged of the commands that read a run: the average in place of the last weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fidgpt.cli import sample, train

Command = Callable[..., Any]
DEBUG = ["--config=config:debug", "--config=set:num_steps=3", "--config=set:samples=None"]


def test_the_average_is_read_and_not_the_last_weights(command: Command, tmp_path: Path) -> None:
    """With beta 0 they are the same; with nearly 1, the average is what the run began with."""
    last, first = str(tmp_path / "last"), str(tmp_path / "first")
    for run, beta in {last: 0.0, first: 0.999999}.items():
        flags = (*DEBUG, f"--config=fiddler:use_ema(beta={beta})", f"--run_dir={run}")
        assert command(train.main, *flags).status == 0

    def scores(run: str, *flags: str) -> str:
        return command(sample.main, run, "--score=def this", *flags).out

    own = scores(last)
    assert scores(first) == own  # averaging changes no weight
    assert scores(last, "--averaged") == own
    assert scores(first, "--averaged") != own


def test_a_run_without_an_average(command: Command, run: str) -> None:
    failed = command(sample.main, run, "--averaged", "--prompt=def ")
    assert failed.status != 0
    assert "keeps no average of its weights" in failed.err
    assert "use_ema" in failed.err
