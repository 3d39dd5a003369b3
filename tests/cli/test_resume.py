"""A run is resumed with another config where that is allowed, and from copies where it is lost."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli import train
from fidgpt.runs.directories import load_run
from fidgpt.train.trackers.trackers import read_rows

from .conftest import Command


def flags_of(*directives: str) -> list[str]:
    return [f"--config={one}" for one in directives]


QUICK = ("config:debug", "set:num_steps=2", "set:checkpoints.every=1", "set:samples=None")


@pytest.fixture
def run_directory(finished: Callable[..., Path]) -> Path:
    return finished(*flags_of(*QUICK))


@pytest.fixture
def resume(command: Command, run_directory: Path) -> Callable[..., Any]:
    """Resume the run with more flags."""
    return lambda *flags: command(train.main, f"--resume={run_directory}", *flags)


def losses(run: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in read_rows(run / "metrics.jsonl")]


def files_in(path: Path) -> dict[Path, int]:
    return {one: one.stat().st_mtime_ns for one in path.rglob("*")}


def journal_of(path: Path) -> dict[str, Any]:
    lines = (path / "changes.jsonl").read_text().splitlines()
    return {row["path"]: row for row in map(json.loads, lines)}


def test_changes_are_journaled(command: Command, resume: Command, run_directory: Path) -> None:
    before = (run_directory / "config.json").read_text()
    changes = flags_of("set:num_steps=4", "tag:LearningRate=0.5", "set:checkpoints.every=2")
    done = resume(*changes)
    assert done.status == 0, done.err
    rows = read_rows(run_directory / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[2]["learning_rate"] > 10 * rows[0]["learning_rate"]
    journal = journal_of(run_directory)
    assert journal["optimizer.lr"]["kind"] == "restart"
    assert journal["checkpoints.every"]["kind"] == "live"
    assert {row["after_step"] for row in journal.values()} == {2}
    assert (run_directory / "config.until_step_2.json").read_text() == before
    assert load_run(run_directory).num_steps == 4
    file = f"--config=config_file:{run_directory / 'config.json'}"
    why = command(train.main, file, "--why=num_steps").out
    assert f"4  set by {run_directory} resumed after step 2: directive 1: set:num_steps=4" in why
    assert f"2  previously set by {run_directory}: directive" in why
    out = command(train.main, file, "--repro").out  # later changes after the first ones
    assert out.startswith("python train.py --config=config:debug ")
    assert "--config=set:num_steps=4" in out and "num_steps=2" not in out
    assert command(train.main, file, "--print=base").out.startswith("config:debug, but\n")


def test_a_config_that_was_edited_by_hand_is_reported(
    command: Command, run_directory: Path, run: str
) -> None:
    resume = (f"--resume={run}", "--dry_run")
    assert "was edited" not in command(train.main, *resume).err
    path = run_directory / "config.json"
    text = path.read_text()
    path.write_text(text.replace("0.95", "0.94"))
    done = command(train.main, *resume)
    assert text != path.read_text() and done.status == 0
    assert f"warning: {path} is not the config that the run began with" in done.err
    (run_directory / "environment.json").unlink()
    assert "was edited" not in command(train.main, *resume).err


def test_auto_resume_refuses_a_run_of_another_config(command: Command, run_directory: Path) -> None:
    flags = (*flags_of("config:debug"), f"--run_dir={run_directory}", "--auto_resume")
    other = command(train.main, *flags)
    assert other.status == 2 and "holds a run of another config" in other.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config=use:optimizer=Lion"], "saved by AdamW, and this run uses Lion"),
        (["--config=set:num_steps=1"], "has done 2 steps already, and num_steps=1"),
        (["--resume_step=7"], "holds no step 7"),
    ],
)
def test_a_dry_run_refuses_what_the_checkpoint_would(
    resume: Command, flags: list[str], words: str
) -> None:
    for how in ([], ["--dry_run"]):
        done = resume(*flags, *how)
        assert done.status == 2 and words in done.err


GROWS = ("fiddler:grow_batch(over=0.5, multiple_of=1)", "set:batch_size=4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "change", "fits"),
    [
        (["fiddler:use_muon", "fiddler:use_ema"], "set:num_steps=4", True),
        (GROWS, "set:seed=0", True),
        ([*GROWS, "set:num_steps=3"], "set:num_steps=40", False),
    ],
)
def test_a_dry_run_ends_as_the_run_itself(
    command: Command, finished: Callable[..., Path], begun: list[str], change: str, fits: bool
) -> None:
    path = finished(*flags_of(*QUICK, *begun))
    files = files_in(path)
    resume = [f"--resume={path}", f"--config={change}", "--allow_noop", "--until_step=3"]
    dry = command(train.main, *resume, "--dry_run")
    assert files_in(path) == files
    really = command(train.main, *resume)
    assert [one.status == 0 for one in (dry, really)] == [fits, fits], dry.err + really.err


def test_what_may_not_change_is_refused_by_name(resume: Command, run_directory: Path) -> None:
    files = files_in(run_directory)
    done = resume(*flags_of("set:model.hidden_dim=64", "set:seed=5", "set:num_steps=4"))
    assert done.status == 2
    assert "model.hidden_dim cannot change when a run is resumed: 32 -> 64" in done.err
    assert "seed cannot change when a run is resumed: 0 -> 5" in done.err
    assert "num_steps may not" not in done.err
    done = resume(*flags_of("fiddler:use_prefetch", "tag:SeqLen=16"))
    assert done.status == 2 and "Prefetch" not in done.err
    assert "seq_len cannot change when a run is resumed" in done.err
    done = resume(*flags_of("fiddler:use_moe"))  # of whose parts the first says all
    assert done.status == 2 and done.err.count("cannot change when a run is resumed") == 1
    assert "model.blocks[0].mlp cannot change when a run is resumed: SwiGLU -> MoE." in done.err
    assert files_in(run_directory) == files


@pytest.mark.parametrize(
    "changes",
    [["fiddler:use_recompute"], ["fiddler:use_selective_recompute", "fiddler:use_prefetch"]],
)
def test_wrappers_that_change_no_number_may_be_added(
    command: Command, resume: Command, run_directory: Path, tmp_path: Path, changes: list[str]
) -> None:
    shutil.copytree(run_directory, plain := tmp_path / "plain")
    more = "--config=set:num_steps=4"
    assert command(train.main, f"--resume={plain}", more).status == 0
    done = resume(more, *flags_of(*changes))
    assert done.status == 0, done.err
    assert losses(run_directory) == losses(plain)
    assert "live" in {row["kind"] for row in journal_of(run_directory).values()}


@pytest.mark.slow
def test_a_lost_run_is_restored_from_its_copies(command: Command, tmp_path: Path) -> None:
    run, copy, again = tmp_path / "run", tmp_path / "copy", tmp_path / "again"
    mirror = f'fiddler:mirror_checkpoints(url="file://{copy}")'
    short = flags_of("config:debug", "set:num_steps=3", "set:checkpoints.every=1", mirror)
    flags = [*short, "--config=set:samples=None", f"--run_dir={run}"]
    assert command(train.main, *flags).status == 0
    lost = losses(run)
    shutil.rmtree(run)
    (copy / "step_00000003" / "manifest.json").unlink()
    done = command(train.main, *flags)
    assert done.status == 2 and f"is the mirror of {run}, up to step 2" in done.err
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
