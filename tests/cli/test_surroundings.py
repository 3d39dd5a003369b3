"""A run directory records the environment of the run, and no secrets."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from fidgpt.compose import runs
from fidgpt.compose.runs import environment, patch


def test_what_another_machine_needs_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("TORCH_API_KEY", "hush")
    monkeypatch.setenv("HOME_SWEET", "no")
    found: Any = environment()
    assert json.loads(json.dumps(found)) == found
    assert {"time", "python", "platform", "working_directory", "threads", "git"} <= found.keys()
    packages, hardware = found["packages"], found["hardware"]
    assert packages["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert {"fidgpt", "safetensors", "fiddle"} <= packages.keys() and len(packages) > 10
    assert hardware["processor"] and hardware["memory_bytes"] > 2**28
    assert found["variables"]["OMP_NUM_THREADS"] == "3"
    assert not {"TORCH_API_KEY", "HOME_SWEET"} & found["variables"].keys()


def test_the_patch_makes_the_code_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*command: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *command], cwd=tmp_path, check=True, capture_output=True)

    file = tmp_path / "code.py"
    monkeypatch.setattr(runs, "__file__", str(file))
    assert patch() is None  # no checkout
    git("init")
    file.write_text("one\n\n")
    git("add", ".")
    git("commit", "-m", "first")
    assert patch() is None  # nothing changed
    file.write_text("one\ntwo é\n\n \n")
    (tmp_path / "x.patch").write_text(str(patch()))
    git("checkout", ".")
    git("apply", "x.patch")
    assert file.read_text() == "one\ntwo é\n\n \n"
    monkeypatch.setattr(runs, "LARGEST_PATCH", 10)
    assert "were left out" in str(patch())
