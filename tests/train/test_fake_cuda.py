"""A step on a GPU waits for nothing and stays there; shown without one, on fake tensors."""

import shutil
import subprocess
import sys
from pathlib import Path

import fake_cuda
import pytest


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_a_step_on_a_gpu_reads_no_number_back(tmp_path: Path) -> None:
    command = [sys.executable, fake_cuda.__file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "guard: DataDependentOutputException\n"
