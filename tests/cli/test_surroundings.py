"""A run directory records the environment of the run, and no secrets."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from fidgpt.compose import environment as module
from fidgpt.compose.environment import environment, patch


def test_what_another_machine_needs() -> None:
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert {"time", "python", "platform", "working_directory", "threads", "git"} <= found.keys()
    packages, hardware = found["packages"], found["hardware"]
    assert isinstance(packages, dict) and isinstance(hardware, dict)
    assert packages["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert {"fidgpt", "safetensors", "fiddle"} <= packages.keys() and len(packages) > 10
    assert hardware["processor"] and hardware["memory_bytes"] > 2**28


def test_only_variables_that_matter_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("TORCH_API_KEY", "hush")
    monkeypatch.setenv("HOME_SWEET", "no")
    variables = environment()["variables"]
    assert isinstance(variables, dict)
    assert variables["OMP_NUM_THREADS"] == "3"
    assert not {"TORCH_API_KEY", "HOME_SWEET"} & variables.keys()


def test_the_patch_makes_the_code_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*command: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *command], cwd=tmp_path, check=True, capture_output=True)

    file = tmp_path / "code.py"
    monkeypatch.setattr(module, "__file__", str(file))
    assert patch() is None  # no checkout
    git("init")
    file.write_text("one\n\n")
    git("add", ".")
    git("commit", "-m", "first")
    assert patch() is None  # nothing changed
    file.write_text("one\ntwo é\n\n \n")
    changed = patch()
    assert changed is not None
    git("checkout", ".")
    (tmp_path / "x.patch").write_text(changed)
    git("apply", "x.patch")
    assert file.read_text() == "one\ntwo é\n\n \n"
    monkeypatch.setattr(module, "LARGEST_PATCH", 10)
    assert "were left out" in str(patch())
