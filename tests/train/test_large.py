"""The command that the README begins with, for a few steps, on whatever computer this is."""

import math
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fidgpt.train.trackers.trackers import read_rows

GIGABYTES = 12  # weights twice, their gradients and AdamW's two means


@pytest.mark.long
@pytest.mark.skipif(
    psutil.virtual_memory().available < GIGABYTES * 2**30, reason=f"needs {GIGABYTES} GB of memory"
)
def test_the_large_model_trains(tmp_path: Path):
    script = Path(__file__).with_name("large_model.py")
    command = [sys.executable, script, tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert 4e8 < int(done.stdout.split()[0]) < 6e8
    losses = [row["loss"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")]
    assert losses == pytest.approx([math.log(1024)] * 2, rel=0.1)  # of a model that knows nothing
