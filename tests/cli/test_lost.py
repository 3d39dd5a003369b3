"""A run whose disk was lost goes on from the copies of its checkpoints alone."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli import train
from fidgpt.train.trackers.trackers import read_rows

Command = Callable[..., Any]


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    """Three steps, of which each is saved and copied."""
    changes = [
        "config:debug",
        "set:num_steps=3",
        "set:checkpoints.every=1",
        "set:samples=None",
        f'fiddler:mirror_checkpoints(url="file://{tmp_path}/copy")',
    ]
    return [f"--config={change}" for change in changes]


@pytest.fixture
def lost(command: Command, flags: list[str], tmp_path: Path) -> list[tuple[int, float]]:
    """What a run measured whose directory is gone, and its last copy as well."""
    assert command(train.main, *flags, f"--run_dir={tmp_path}/run").status == 0
    measured = losses(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "copy" / "step_00000003" / "manifest.json").unlink()
    return measured


def losses(run: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in read_rows(run / "metrics.jsonl")]


def test_it_goes_on_where_the_copies_are_brought_to(
    command: Command, lost: list[tuple[int, float]], tmp_path: Path
) -> None:
    again = tmp_path / "again"
    done = command(train.main, f"--resume=file://{tmp_path}/copy", f"--run_dir={again}")
    assert done.status == 0, done.err
    assert losses(again) == lost
    assert (again / "tokenizer.json").exists()
    assert (again / "command.txt").exists()


def test_the_command_that_began_it_finds_the_copies(
    command: Command, flags: list[str], lost: list[tuple[int, float]], tmp_path: Path
) -> None:
    done = command(train.main, *flags, f"--run_dir={tmp_path}/run", "--auto_resume")
    assert done.status == 0, done.err
    assert losses(tmp_path / "run") == lost
    assert (tmp_path / "run/checkpoints/step_00000002").exists()


def test_the_same_command_without_that_explains_how_to_resume(
    command: Command, flags: list[str], lost: list[tuple[int, float]], tmp_path: Path
) -> None:
    done = command(train.main, *flags, f"--run_dir={tmp_path}/run")
    assert done.status == 2
    assert "would delete: name a folder" in done.err
    assert f"--resume=file://{tmp_path}/copy --run_dir=" in done.err


@pytest.mark.parametrize(
    ("resume", "wrong"),
    [
        ("{}/copy", "holds no copy of a run"),
        ("copies", "must be a URL"),
        ("nowhere://x", "no run can be restored from nowhere://x"),
        ("{}/run", "leave --run_dir out"),
    ],
)
def test_what_is_no_copy(command: Command, tmp_path: Path, resume: str, wrong: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    flag = f"--resume={resume.format(tmp_path)}"
    done = command(train.main, flag, f"--run_dir={tmp_path}/again")
    assert done.status == 2
    assert wrong in done.err
    assert not (tmp_path / "again").exists()


def test_the_directory_to_resume_in_must_be_named(command: Command) -> None:
    done = command(train.main, "--resume=gs://bucket/run")
    assert done.status == 2
    assert "name with --run_dir" in done.err
