"""A step on a GPU waits for nothing and stays there; shown without one, on fake tensors."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "gpu_cases.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("fake_cuda"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler"),
]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the library that registers the device."""
    return tmp_path_factory.mktemp("device")


def run(device: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), str(device), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=7200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("tier", ["quick", pytest.param("long", marks=pytest.mark.long)])
def test_steps_wait_for_nothing(tier: str, device: Path) -> None:
    found = run(device, tier)
    assert found["cases"] > 10 and not found["wrong"], json.dumps(found["wrong"], indent=1)
    assert 100 < found["launches"] <= 420  # of two layers; without launches of many tensors, 760
