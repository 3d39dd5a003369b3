"""What an older fidgpt wrote is read, and what a newer one wrote is refused with a word."""

from pathlib import Path

import pytest
import torch
from torch import nn

from fidgpt.train import CheckpointError, Checkpoints
from fidgpt.train.checkpoints import manifest


def save(run: Path, step: int, monkeypatch: pytest.MonkeyPatch, *, format: int) -> nn.Module:
    model = nn.Linear(3, 2)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "FORMAT", format)
        Checkpoints(every=1, keep_last=3).save(
            run,
            step=step,
            model=model,
            optimizer=torch.optim.SGD(model.parameters()),
            state={"at": step},
        )
    return model


def restore(run: Path, model: nn.Module) -> tuple[int, dict[str, int]]:
    optimizer = torch.optim.SGD(model.parameters())
    return Checkpoints(every=1, keep_last=3).restore(run, model=model, optimizer=optimizer)


def test_the_first_format_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, model = save(tmp_path, 1, monkeypatch, format=1), nn.Linear(3, 2)
    assert restore(tmp_path, model) == (1, {"at": 1})
    assert all(map(torch.equal, model.parameters(), saved.parameters()))


def test_a_format_from_the_future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 200, monkeypatch, format=manifest.FORMAT)
    save(tmp_path, 300, monkeypatch, format=3)
    with pytest.raises(CheckpointError) as error:
        restore(tmp_path, nn.Linear(3, 2))
    first, second = str(error.value).splitlines()
    assert first.endswith("step_00000300 has format 3, this fidgpt reads 2: update fidgpt.")
    assert second.startswith(
        "The newest good checkpoint is step 200: resume from it with --resume="
    )
