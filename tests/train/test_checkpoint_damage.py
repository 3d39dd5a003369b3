"""Damage is named and refused, the newest good checkpoint is offered, and a save is atomic."""

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fidgpt.train.checkpoints import CheckpointError, Checkpoints, manifest, newest_good

pytestmark = pytest.mark.usefixtures("one_thread")
FILES = (
    "manifest.json",
    "model.safetensors",
    "state.json",
    "optimizer.safetensors",
    "optimizer.json",
)
CHECKPOINTS = Checkpoints(every=100, keep_last=3)


def make(size: int = 64) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(size, size)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def save(run: Path, step: int, size: int = 64) -> Path:
    model, optimizer = make(size)
    return CHECKPOINTS.save(run, step=step, model=model, optimizer=optimizer, state={"at": step})


def restore(run: Path, step: int | None = None) -> tuple[int, dict[str, Any]]:
    model, optimizer = make()
    return CHECKPOINTS.restore(run, model=model, optimizer=optimizer, step=step)


def refusal(run: Path, step: int | None = None) -> str:
    with pytest.raises(CheckpointError) as error:
        restore(run, step)
    return str(error.value)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with the checkpoints 100 and 200."""
    save(tmp_path, 100)
    save(tmp_path, 200)
    return tmp_path


def newest(run: Path) -> Path:
    return run / "checkpoints" / "step_00000200"


def offer(run: Path, step: int = 100) -> str:
    return (
        f"The newest good checkpoint is step {step}: "
        f"resume from it with --resume={run} --resume_step={step}"
    )


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def turn_into_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("hurt", [truncate, empty, flip, Path.unlink, turn_into_a_directory])
def test_a_damaged_file_is_named_and_an_older_checkpoint_offered(
    hurt: Callable[[Path], None], name: str, run: Path
) -> None:
    hurt(newest(run) / name)
    text = refusal(run)
    first, second = text.splitlines()
    assert first.startswith(f"{newest(run)} is damaged: {name} ")
    assert second == offer(run)
    assert refusal(run, 200) == text
    assert name in (manifest.damage(newest(run)) or "")
    assert newest_good(run) == 100
    assert restore(run, 100) == (100, {"at": 100})


def test_every_byte_of_the_manifest_counts(run: Path) -> None:
    path = newest(run) / "manifest.json"
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert manifest.damage(newest(run), needed=()), f"byte {place} of {good!r}"
    path.write_bytes(good)
    assert manifest.damage(newest(run)) is None


def test_a_renamed_checkpoint_is_not_taken_for_another_step(run: Path) -> None:
    newest(run).rename(newest(run).with_name("step_00000300"))
    assert "step_00000300 holds step 200 by its manifest.json: rename" in refusal(run)
    assert refusal(run).endswith(offer(run))


def test_an_oddly_named_directory(run: Path) -> None:
    newest(run).rename(newest(run).with_name("step_best"))
    assert "step_best is not named like step_00000100: rename it or move" in refusal(run)
    assert refusal(run).endswith(offer(run))
    assert restore(run, 100) == (100, {"at": 100})
    newest(run).with_name("step_best").rename(newest(run).with_name("best"))
    assert restore(run) == (100, {"at": 100})


def test_nothing_good_is_left(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for step in (100, 200):
        flip(newest(run).with_name(manifest.name_of(step)) / "state.json")
    assert refusal(run).endswith("No good checkpoint is left: start the run again.")
    nowhere = tmp_path_factory.mktemp("nowhere")
    assert refusal(nowhere).startswith(f"{nowhere}/checkpoints holds no checkpoint: nothing was")
    assert f"--resume={nowhere} starts with the first step" in refusal(nowhere)


def test_weights_alone_do_not_need_a_good_optimizer_file(run: Path) -> None:
    flip(newest(run) / "optimizer.safetensors")
    step, _ = CHECKPOINTS.restore(run, model=make()[0], optimizer=None)
    assert step == 200
    flip(newest(run) / "model.safetensors")
    with pytest.raises(CheckpointError, match="newest good checkpoint is step 100: use it with"):
        CHECKPOINTS.restore(run, model=make()[0], optimizer=None)


def test_the_next_save_removes_what_a_killed_run_left(run: Path) -> None:
    left = newest(run).with_name(".tmp-step_00000300-4242")
    shutil.copytree(newest(run), left)
    assert restore(run) == (200, {"at": 200})
    assert left.exists()  # reading changes nothing: another process may be writing
    save(run, 250)
    assert not left.exists()


def test_a_replacement_cut_short_loses_nothing(run: Path) -> None:
    aside = newest(run).with_name(".old-step_00000200")
    newest(run).rename(aside)
    assert restore(run) == (200, {"at": 200})
    save(run, 300)
    assert newest(run).exists() and not aside.exists()
    shutil.copytree(newest(run), aside)  # cut after the second rename
    save(run, 400)
    assert manifest.damage(newest(run)) is None
    assert not aside.exists()


def test_files_follow_the_umask(run: Path) -> None:
    (run / "plain").touch()
    modes = {path.stat().st_mode for path in [run / "plain", *newest(run).iterdir()]}
    assert len(modes) == 1


def unchanged(run: Path) -> bool:
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    return names == ["step_00000100", "step_00000200"] and newest_good(run) == 200


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("step", [200, 300])
def test_a_file_that_cannot_grow(step: int, run: Path) -> None:
    with largest_file(20_000), pytest.raises(CheckpointError) as error:  # weights take 16,640 bytes
        save(run, step)
    assert unchanged(run)
    first, second = str(error.value).splitlines()
    assert "cannot be written (File too large); it takes 0.0 MB and " in first
    assert first.endswith(
        f"MB are free: make room or raise the quota, then go on with --resume={run}"
    )
    assert second.startswith("Nothing half-written is left")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_save_leaves_nothing(
    stop: type[BaseException], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise stop

    monkeypatch.setattr(manifest, "write_json", interrupt)
    with pytest.raises(stop):
        save(run, 300)
    assert unchanged(run)


@pytest.mark.parametrize("when", ["damage", "files_of"])
def test_what_is_dropped_while_it_is_read_makes_room_for_the_newest(
    run: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the run itself, while another process reads its model."""
    real, messages = getattr(manifest, when), []

    def dropped(path: Path, *arguments: Any) -> Any:
        if not messages:
            messages.append(path)
            save(run, 300)
            shutil.rmtree(path)
        return real(path, *arguments)

    monkeypatch.setattr(manifest, when, dropped)
    assert restore(run) == (300, {"at": 300})
    messages.clear()
    with pytest.raises(CheckpointError, match="holds no step 300; it holds"):
        restore(run, 300)


def test_older_formats_are_read_and_newer_ones_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "FORMAT", 1)
        save(run, 250)
        patch.setattr(manifest, "FORMAT", 3)
        save(run, 300)
    assert restore(run, 250) == (250, {"at": 250})
    first, second = refusal(run).splitlines()
    assert first.endswith("step_00000300 has format 3, this fidgpt reads 2: update fidgpt.")
    assert second == offer(run, 250)
