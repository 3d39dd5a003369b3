"""The flag --averaged of the commands that read a run: the average in place of the last weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl.testing import flagsaver

from fidgpt.cli import sample, train

Command = Callable[..., Any]
DEBUG = ["--config=config:debug", "--config=set:num_steps=3", "--config=set:samples=None"]


def train_run(command: Command, path: Path, *more: str) -> str:
    with flagsaver.flagsaver():
        assert command(train.main, *DEBUG, *more, f"--run_dir={path}").status == 0
    return str(path)


def scores(command: Command, run: str, *flags: str) -> str:
    with flagsaver.flagsaver():
        done = command(sample.main, run, "--score=def this", *flags)
    assert (done.status, done.err) == (0, "")
    return done.out


def test_the_average_is_read_and_not_the_last_weights(command: Command, tmp_path: Path) -> None:
    """With beta 0 they are the same; with nearly 1, the average is what the run began with."""
    last, first = (
        train_run(command, tmp_path / name, f"--config=fiddler:use_ema(beta={beta})")
        for name, beta in (("last", 0.0), ("first", 0.999999))
    )
    own = scores(command, last)
    assert scores(command, first) == own  # averaging changes no weight
    assert scores(command, last, "--averaged") == own
    assert scores(command, first, "--averaged") != own


def test_a_run_without_an_average(command: Command, tmp_path: Path) -> None:
    run = train_run(command, tmp_path / "run")
    with flagsaver.flagsaver():
        failed = command(sample.main, run, "--averaged", "--prompt=def ")
    assert failed.status != 0
    assert "keeps no average of its weights" in failed.err
    assert "use_ema" in failed.err
