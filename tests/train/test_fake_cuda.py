"""A step on a GPU waits for nothing and stays there; shown without one, on fake tensors."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fidgpt.data import Batch
from fidgpt.train.micro_batches import split_batch

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


def test_a_batch_is_copied_to_a_gpu_while_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[object] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: copies.append("pinned") or self)
    monkeypatch.setattr(Tensor, "is_pinned", lambda self: "pinned" in copies)

    def to(self: Tensor, device: torch.device, *, non_blocking: bool) -> Tensor:
        copies.append((device.type, non_blocking))
        return self

    monkeypatch.setattr(Tensor, "to", to)
    batch = Batch(torch.zeros(4, 5, dtype=torch.int64))
    parts = split_batch(batch, size=2, device=torch.device("cuda"))
    assert [len(part.batch.tokens) for part in parts] == [2, 2]
    assert copies == ["pinned", ("cuda", True)]
