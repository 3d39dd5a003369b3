"""Checkpoints in memory are taken up first after a failure, by one process and by several."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import remembered
import torch
from faults.elastic import differences
from forked import Python
from remembered import RESIZED, Dies, config_of, cut, dying, files_in, train

from fidgpt.train import MemoryCheckpoints, RunError
from fidgpt.train.checkpoints import manifest
from fidgpt.train.trackers.trackers import read_rows

pytestmark = pytest.mark.slow


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The memory of this machine."""
    monkeypatch.setenv("MEMORY", str(tmp_path / "memory"))
    return tmp_path / "memory"


@pytest.fixture
def failed(tmp_path: Path, memory: Path) -> Path:
    """A run that failed in step 7, with step 6 in memory."""
    with dying(7), pytest.raises(Dies):
        train(config_of(), tmp_path / "run")
    assert files_in(memory, 6) and not files_in(memory, 4)
    assert not manifest.find(tmp_path / "run")
    return tmp_path / "run"


def newest(path: Path) -> int:
    return max(manifest.find(path), default=0)


def test_a_failed_run_resumes_from_memory(tmp_path: Path, failed: Path, memory: Path, capsys):
    rows = train(config_of(), failed, resume=True)
    assert rows == train(config_of(), tmp_path / "whole")
    assert "step 6 was found in memory" in capsys.readouterr().err
    assert read_rows(failed / "metrics.jsonl")[-1]["goodput/redone_steps"] == 0
    assert [*manifest.find(failed)] == [8]
    assert [*memory.iterdir()] == []


@pytest.mark.parametrize(
    ("lose", "step"),
    [
        (lambda memory: cut(files_in(memory, 6, "optimizer.safetensors")), 0),
        (lambda memory: files_in(memory, 6)[0].unlink(), 0),
        (lambda memory: None, 6),
    ],
    ids=["damaged", "missing", "whole"],
)
def test_what_is_damaged_in_memory_is_not_used(
    failed: Path, memory: Path, lose: Callable[[Path], object], step: int, capsys
) -> None:
    lose(memory)
    own = MemoryCheckpoints(folder="$MEMORY")
    own.recover(failed, step=None)
    assert newest(failed) == step
    if step:
        assert manifest.damage(manifest.find(failed)[step]) is None


def test_a_newer_step_on_the_disk_is_not_replaced(failed: Path) -> None:
    (failed / "checkpoints" / manifest.name_of(7)).mkdir(parents=True)
    MemoryCheckpoints(folder="$MEMORY").recover(failed, step=None)
    assert [*manifest.find(failed)] == [7]
    MemoryCheckpoints(folder="$MEMORY").recover(failed, step=6)  # as with --resume_step
    assert [*manifest.find(failed)] == [6, 7]


def test_copies_of_steps_that_were_abandoned_are_not_used(failed: Path, memory: Path) -> None:
    aside = memory.with_name("aside")
    memory.rename(aside)
    with dying(3), pytest.raises(Dies):
        train(config_of(), failed, resume=True)  # from the start, and step 2 is in memory
    for step in aside.glob("*/*/checkpoints/*"):  # the machine is back
        (root,) = memory.iterdir()
        step.rename(root / "process_00000" / "checkpoints" / step.name)
    MemoryCheckpoints(folder="$MEMORY").recover(failed, step=None)
    assert newest(failed) == 2


def test_a_run_has_no_part_in_copies_of_another(tmp_path: Path, failed: Path, memory: Path) -> None:
    train(config_of(), tmp_path / "other")
    assert files_in(memory, 6)
    root = next(memory.iterdir())
    (root / "fidgpt-memory.json").write_text('{"run": "other"}')
    with pytest.raises(RunError, match="belongs to another run or user"):
        MemoryCheckpoints(folder="$MEMORY").recover(failed, step=None)
    assert files_in(memory, 6)


def test_files_of_others_are_left(tmp_path: Path, failed: Path, memory: Path) -> None:
    file = files_in(memory, 6)[0].with_name("notes.txt")
    file.write_text("mine")
    train(config_of(), failed, resume=True)
    (kept,) = memory.rglob("notes.txt")
    assert kept.read_text() == "mine"


def test_a_machine_without_room_refuses_with_numbers(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 200_000}))
    with pytest.raises(
        RunError, match=r"need 1.0 MB in .*memory of a machine, and 0.2 MB are free"
    ):
        train(config_of(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_full_memory_is_a_warning_and_the_run_goes_on(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    whole = train(config_of(), tmp_path / "whole")
    monkeypatch.setattr("fidgpt.train.checkpoints.memory.tensors.write_pieces", full)
    cfg = config_of()
    cfg.checkpoints.every, cfg.checkpoints.memory.every = None, 3
    with dying(8), pytest.raises(Dies):
        train(cfg, tmp_path / "run")
    assert "warning: step 3 was not saved in memory" in capsys.readouterr().err
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) == 7 < len(whole)
    assert not files_in(memory, 3) and not [*memory.rglob(".fidgpt-draft-*")]


def test_a_machine_holds_parts_of_its_own_and_of_its_neighbor() -> None:
    parts = MemoryCheckpoints(keep_last=2)
    assert parts.needed(10, num_parts=4, num_local=4) == 120
    assert parts.needed(10, num_parts=8, num_local=4) == 240
    assert parts.needed(10, num_parts=1, num_local=4) == 30


def test_another_number_of_machines_resumes_from_memory(tmp_path: Path) -> None:
    process = Python(remembered.__file__, tmp_path, *RESIZED, output=tmp_path / "output")
    assert process.end(seconds=300) == 0, process.output[-4000:]
    found: dict[str, Any] = torch.load(tmp_path / "found.pt", weights_only=False)
    for case, (*_, step) in RESIZED.items():
        left = found[case]
        assert differences(left["rows"], found["whole"]) == [], case
        assert left["redone"] == 6 - step, case
