"""A run whose disk was lost goes on from the copies of its checkpoints alone."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli import train
from fidgpt.train.trackers.trackers import read_rows

Command = Callable[..., Any]


def losses(run: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in read_rows(run / "metrics.jsonl")]


def test_a_lost_run_is_restored_from_its_copies(command: Command, tmp_path: Path) -> None:
    run, copy, again = tmp_path / "run", tmp_path / "copy", tmp_path / "again"
    changes = [
        *("config:debug", "set:num_steps=3", "set:checkpoints.every=1", "set:samples=None"),
        f'fiddler:mirror_checkpoints(url="file://{copy}")',
    ]
    flags = [*(f"--config={change}" for change in changes), f"--run_dir={run}"]
    assert command(train.main, *flags).status == 0
    lost = losses(run)
    shutil.rmtree(run)
    (copy / "step_00000003" / "manifest.json").unlink()
    done = command(train.main, *flags)
    assert done.status == 2 and "would delete: name a folder" in done.err
    assert f"--resume=file://{copy} --run_dir=" in done.err
    done = command(train.main, f"--resume=file://{copy}", f"--run_dir={again}")
    assert done.status == 0, done.err
    assert losses(again) == lost
    assert (again / "tokenizer.json").exists() and (again / "command.txt").exists()
    (copy / "step_00000003" / "manifest.json").unlink()
    done = command(train.main, *flags, "--auto_resume")
    assert done.status == 0, done.err
    assert losses(run) == lost
    assert (run / "checkpoints/step_00000002").exists()


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
    assert done.status == 2 and wrong in done.err
    assert not (tmp_path / "again").exists()
