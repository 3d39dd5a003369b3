"""The command `evaluate` on a run of two steps: the harness's numbers, and what it refuses."""

import errno
import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from absl.testing import flagsaver

from fidgpt import evaluate
from fidgpt.cli import train
from fidgpt.train.evaluation import Tasks

Command = Callable[..., Any]
TASKS = Path(__file__).parents[1] / "train" / "harness_tasks"


@pytest.fixture
def run(command: Command, tmp_path: Path) -> str:
    """The directory of a run."""
    path = tmp_path / "run"
    with flagsaver.flagsaver():
        flags = ["--config=config:debug", "--config=set:num_steps=2", "--config=set:samples=None"]
        assert command(train.main, *flags, f"--run_dir={path}").status == 0
    return str(path)


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-evaluation-harness is not installed")
@pytest.mark.filterwarnings("ignore")
def test_tasks_are_run_on_the_newest_checkpoint(command: Command, run: str, tmp_path: Path) -> None:
    for path in TASKS.iterdir():
        text = path.read_text(encoding="utf-8").replace("FOLDER", str(tmp_path))
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    asked = ["--tasks=fidgpt_choice,fidgpt_text", f"--include_path={tmp_path}"]
    output = tmp_path / "results.json"
    status, out, err = command(evaluate.main, run, *asked, f"--output={output}")
    assert (status, err) == (0, "")
    results = json.loads(output.read_text())
    assert f"{results['fidgpt_choice']['acc']:.4f} ± " in out
    assert f"{results['fidgpt_text']['bits_per_byte']:.4f}" in out
    assert "no task 'nothing'" in command(evaluate.main, run, "--tasks=nothing").err


@pytest.mark.skipif(find_spec("lm_eval") is not None, reason="lm-evaluation-harness is installed")
def test_without_the_harness_the_extra_is_named(command: Command, run: str) -> None:
    assert "fidgpt[lm-eval]" in command(evaluate.main, run, "--tasks=fidgpt_choice").err


@pytest.mark.parametrize("name", ["", "nowhere/results.json", "/dev/null"])
def test_where_nothing_can_be_written_nothing_is_asked(
    command: Command, tmp_path: Path, name: str
) -> None:
    asked = ["--tasks=fidgpt_choice", f"--output={tmp_path / name}"]
    status, _, err = command(evaluate.main, "runs/none", *asked)
    assert status == 2 and "cannot be written: name a file in a folder" in err


def test_results_are_written_whole_or_not_at_all(
    command: Command, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(Tasks, "__init__", lambda _, names, **__: asked.append(names))
    monkeypatch.setattr(Tasks, "run", lambda *_, **__: {"task": {"acc": 0.5}})
    output = tmp_path / "results.json"
    output.write_text("older")
    with pytest.MonkeyPatch.context() as full:
        full.setattr(os, "fsync", _no_room)
        status, out, err = command(evaluate.main, run, "--tasks=task", f"--output={output}")
    assert status == 2 and "0.5000" in out
    assert f"{output} cannot be written: No space left on device" in err
    assert output.read_text() == "older"
    flags = ["--tasks=task,other", "--tasks=more", f"--output={output}"]
    assert command(evaluate.main, run, *flags).status == 0
    assert asked == [["task"], ["task", "other", "more"]]
    assert json.loads(output.read_text()) == {"task": {"acc": 0.5}}


def _no_room(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_run_and_a_task_are_needed(command: Command) -> None:
    assert "name one directory" in command(evaluate.main).err
    assert "--tasks is missing" in command(evaluate.main, "runs/none").err
