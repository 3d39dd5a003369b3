"""The chain of the speedrun: its commands, what it runs again, and its page."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fidgpt.cli import speedrun, speedrun_page
from fidgpt.graph import ConfigError

pytestmark = pytest.mark.slow


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of stages, none of which runs; those with `evaluate` fail."""
    commands: list[list[str]] = []

    def fake(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, int("fidgpt.evaluate" in command), "7")

    monkeypatch.setattr(speedrun.subprocess, "run", fake)
    monkeypatch.setattr(speedrun_page, "write_page", lambda folder, *_, **__: folder / "page")
    return commands


def test_stages_run_once_each(started: list[list[str]], tmp_path: Path) -> None:
    flags = ["--depth=2", "--hardware=cpux1", f"--run_dir={tmp_path}"]
    assert speedrun.main(flags) == 0
    assert [one[2] for one in started] == [
        *("fidgpt.cli.train", "fidgpt.cli.train", "fidgpt.data.docstrings", "fidgpt.cli.train")
    ]
    assert [*json.loads((tmp_path / "stages.json").read_text())] == [
        *("text", "pretrained", "talk", "sft")
    ]
    assert speedrun.main(flags) == 0 and len(started) == 4
    assert speedrun.main([*flags, "--tasks=core", "--data=there"]) == 1
    assert started[-1][2:] == [
        "fidgpt.evaluate",
        str(tmp_path / "pretrained"),
        "--tasks=core",
        "--data=there",
        f"--out={tmp_path / 'pretrained.json'}",
    ]


@pytest.mark.parametrize("flag", ["--depth=0", "--depth=1000", "--hardware=foo", "--only=foo"])
def test_a_wrong_value_of_a_flag_is_one_line(flag: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(speedrun, "FLAGS", argparse.Namespace())
    with pytest.raises(ConfigError, match=flag):
        speedrun.main([flag, "--print"])


def test_slurm_gets_a_job_for_each_stage(started: list[list[str]], tmp_path: Path) -> None:
    flags = ["--depth=2", "--hardware=h100x8", f"--run_dir={tmp_path}", "--slurm"]
    assert speedrun.main(flags) == 0 and len(started) == 5
    assert all("--gres=gpu:8" in one for one in started)
    assert ["--dependency=afterok:7" in one for one in started] == [False, *[True] * 4]
    assert started[1][-1].endswith("--only=pretrained") and sys.executable in started[1][-1]
