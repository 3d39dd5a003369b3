"""A run goes on with another config where that is allowed, journals it, and refuses the rest."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli import train
from fidgpt.compose.sources import load_run
from fidgpt.train.trackers.trackers import read_rows

Command = Callable[..., Any]


@pytest.fixture
def run_directory(command: Command, tmp_path: Path) -> Path:
    path = tmp_path / "run"
    flags = ("--config=config:debug", "--config=set:num_steps=2")
    saving = "--config=set:checkpoints.every=1"
    assert command(train.main, *flags, saving, f"--run_dir={path}").status in (0, None)
    return path


def test_what_may_change_does_and_is_journaled(command: Command, run_directory: Path) -> None:
    before = (run_directory / "config.json").read_text()
    changes = ["set:num_steps=4", "tag:LearningRate=0.5", "set:checkpoints.every=2"]
    flags = [f"--config={change}" for change in changes]
    status, _, err = command(train.main, f"--resume={run_directory}", *flags)
    assert status in (0, None), err
    rows = read_rows(run_directory / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[2]["learning_rate"] > 10 * rows[0]["learning_rate"]
    lines = (run_directory / "changes.jsonl").read_text().splitlines()
    journal = {row["path"]: row for row in map(json.loads, lines)}
    assert journal["optimizer.lr"]["kind"] == "restart"
    assert journal["checkpoints.every"]["kind"] == "live"
    assert {row["after_step"] for row in journal.values()} == {2}
    assert (run_directory / "config.until_step_2.json").read_text() == before
    assert load_run(run_directory).num_steps == 4


def test_a_part_that_was_added_and_killed_before_it_was_saved(
    command: Command, run_directory: Path
) -> None:
    keep = "--config=set:checkpoints.keep_last=9"
    flags = ["--config=set:num_steps=4", "--config=fiddler:use_ema", keep]
    resume = f"--resume={run_directory}"
    assert command(train.main, resume, *flags).status in (0, None)
    for step in (3, 4):
        shutil.rmtree(run_directory / "checkpoints" / f"step_{step:08d}")
    status, _, err = command(train.main, resume)
    assert status in (0, None), err
    assert "average is not in " in err and "it starts from its initial state" in err


def test_auto_resume_refuses_a_run_of_another_config(command: Command, run_directory: Path) -> None:
    other = command(
        train.main, "--config=config:debug", f"--run_dir={run_directory}", "--auto_resume"
    )
    assert other.status == 2
    assert "holds a run of another config" in other.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config=use:optimizer=Lion"], "it was saved by AdamW, and this run uses Lion"),
        (["--config=set:num_steps=1"], "has done 2 steps already, and num_steps=1"),
        (["--resume_step=7"], "holds no step 7"),
        ([], "cannot be written (Permission denied), and a resumed run "),
    ],
)
def test_a_dry_run_refuses_what_the_checkpoint_would(
    command: Command,
    run_directory: Path,
    flags: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not flags:  # root may write everywhere
        monkeypatch.setattr("os.access", lambda path, _: Path(path) != run_directory)
    for how in ([], ["--dry_run"]):
        status, _, err = command(train.main, f"--resume={run_directory}", *flags, *how)
        assert status == 2
        assert words in err


@pytest.mark.parametrize(
    ("begun", "change", "fits"),
    [
        (["fiddler:use_lora"], "set:num_steps=4", True),
        (["fiddler:use_muon", "fiddler:use_ema"], "set:num_steps=4", True),
        (["fiddler:use_skip_step"], "del:guard", True),
        (["fiddler:grow_batch(over=0.5, multiple_of=1)", "set:batch_size=4"], "set:seed=0", True),
        (
            ["fiddler:grow_batch(over=0.5, multiple_of=1)", "set:batch_size=4", "set:num_steps=3"],
            "set:num_steps=40",
            False,
        ),
    ],
)
def test_a_dry_run_ends_as_the_run_itself(
    command: Command, tmp_path: Path, begun: list[str], change: str, fits: bool
) -> None:
    directives = ["config:debug", "set:num_steps=2", "set:checkpoints.every=1", *begun]
    path = tmp_path / "run"
    flags = [f"--config={one}" for one in directives]
    assert command(train.main, *flags, f"--run_dir={path}").status in (0, None)
    files = {one: one.stat().st_mtime_ns for one in path.rglob("*")}
    resume = [f"--resume={path}", f"--config={change}", "--allow_noop", "--until_step=3"]
    dry = command(train.main, *resume, "--dry_run")
    assert {one: one.stat().st_mtime_ns for one in path.rglob("*")} == files
    really = command(train.main, *resume)
    assert [(one.status or 0) == 0 for one in (dry, really)] == [fits, fits], dry.err + really.err


def test_what_may_not_change_is_refused_by_name(command: Command, run_directory: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in run_directory.rglob("*")}
    flags = ["--config=set:model.hidden_dim=64", "--config=set:seed=5", "--config=set:num_steps=4"]
    status, _, err = command(train.main, f"--resume={run_directory}", *flags)
    assert status == 2
    assert "model.hidden_dim cannot change when a run is resumed: 32 -> 64" in err
    assert "seed cannot change when a run is resumed: 0 -> 5" in err
    assert "num_steps may not" not in err
    assert {path: path.stat().st_mtime_ns for path in run_directory.rglob("*")} == files


def test_later_changes_are_shown_after_the_first_ones(
    command: Command, run_directory: Path
) -> None:
    flags = ["--config=set:samples.num_tokens=8", "--config=set:num_steps=3"]
    assert command(train.main, f"--resume={run_directory}", *flags).status in (0, None)
    file = f"--config=config_file:{run_directory / 'config.json'}"
    _, out, _ = command(train.main, file, "--repro")
    assert out.startswith("python train.py --config=config:debug ")
    assert "--config=set:num_steps=3" in out and "num_steps=2" not in out
    _, out, _ = command(train.main, file, "--print=base")
    assert out.startswith("config:debug, but\n")


@pytest.mark.parametrize(
    "changes",
    [["fiddler:use_recompute"], ["fiddler:use_selective_recompute", "fiddler:use_prefetch"]],
)
def test_what_changes_no_number_may_come_to_stand_around(
    command: Command, run_directory: Path, tmp_path: Path, changes: list[str]
) -> None:
    shutil.copytree(run_directory, tmp_path / "plain")
    more = ["--config=set:num_steps=4"]
    assert command(train.main, f"--resume={tmp_path / 'plain'}", *more).status in (0, None)
    flags = [*more, *(f"--config={change}" for change in changes)]
    status, _, err = command(train.main, f"--resume={run_directory}", *flags)
    assert status in (0, None), err
    found = [read_rows(path / "metrics.jsonl") for path in (run_directory, tmp_path / "plain")]
    assert [row["loss"] for row in found[0]] == [row["loss"] for row in found[1]]
    journal = map(json.loads, (run_directory / "changes.jsonl").read_text().splitlines())
    assert "live" in {row["kind"] for row in journal}


def test_what_stands_around_hides_no_other_change(command: Command, run_directory: Path) -> None:
    flags = ["--config=fiddler:use_prefetch", "--config=tag:SeqLen=16"]
    status, _, err = command(train.main, f"--resume={run_directory}", *flags)
    assert status == 2
    assert "seq_len cannot change when a run is resumed" in err
    assert "Prefetch" not in err
