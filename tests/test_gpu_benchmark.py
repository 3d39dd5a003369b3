"""The script for the day when a GPU is there, rehearsed without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "gpu.sh"


def run(page: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    settings = {"PAGE": str(page), "PYTHON": sys.executable, **variables}
    return subprocess.run(
        ["bash", str(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | settings,
        timeout=3600,
    )


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_one_line(tmp_path: Path) -> None:
    done = run(tmp_path / "page.md")
    assert done.returncode == 1 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.endswith("torch finds no GPU here; DEVICE=cpu rehearses this with small shapes.")
    assert not (tmp_path / "page.md").exists()


@pytest.mark.long
def test_the_rehearsal_fills_every_part_of_the_page(tmp_path: Path) -> None:
    done = run(tmp_path / "page.md", DEVICE="cpu")
    page = (tmp_path / "page.md").read_text()
    assert done.returncode == 0 and "failed" not in page, page
    parts = [line for line in page.splitlines() if line.startswith("## ")]
    assert [part.split(":")[0].removeprefix("## ") for part in parts] == [
        *("Correctness", "Training steps", "Generation in float32", "Memory", "Profile")
    ]
