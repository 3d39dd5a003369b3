"""Checkpoints that somebody reads while their run goes on, or may not read at all."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fidgpt.train.checkpoints import CheckpointError, Checkpoints, manifest

CHECKPOINTS = Checkpoints(every=100, keep_last=3)


def parts() -> dict[str, Any]:
    model = nn.Linear(4, 4)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


def save(run: Path, step: int) -> None:
    CHECKPOINTS.save(run, step=step, state={"at": step}, **parts())


def restore(run: Path, step: int | None = None) -> tuple[int, dict[str, Any]]:
    return CHECKPOINTS.restore(run, step=step, **parts())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with the checkpoints 100 and 200."""
    save(tmp_path, 100)
    save(tmp_path, 200)
    return tmp_path


@pytest.mark.parametrize("when", ["damage", "files_of"])
def test_what_is_dropped_while_it_is_read_makes_room_for_the_newest(
    run: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the run itself, whose model somebody looks at meanwhile."""
    real, told = getattr(manifest, when), []

    def dropped(path: Path, *arguments: Any) -> Any:
        if not told:
            told.append(path)
            save(run, 300)
            shutil.rmtree(path)
        return real(path, *arguments)

    monkeypatch.setattr(manifest, when, dropped)
    assert restore(run) == (300, {"at": 300})
    told.clear()
    with pytest.raises(CheckpointError, match="holds no step 300; it holds"):
        restore(run, 300)


def test_a_folder_that_may_not_be_read_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be read \(Permission denied\)"):
        restore(run)
