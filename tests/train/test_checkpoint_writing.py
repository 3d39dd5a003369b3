"""Checkpoints written in the background, and by several processes."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import run_ranks
from torch import nn

from fidgpt.train import BackgroundWriter, CheckpointError, Checkpoints, SyncWriter
from fidgpt.train.checkpoints import checkpoints as saving
from fidgpt.train.checkpoints import newest_good


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(6, 5)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(6)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def beside() -> Checkpoints:
    return Checkpoints(every=1, keep_last=9, writer=BackgroundWriter())


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Holds every writing until it is set."""
    gate, save = threading.Event(), saving.save_files

    def wait_and_save(*arguments: Any, **named: Any) -> None:
        assert gate.wait(30)
        save(*arguments, **named)

    monkeypatch.setattr("fidgpt.train.checkpoints.checkpoints.save_files", wait_and_save)
    return gate


def test_steps_that_follow_change_nothing_in_it(tmp_path: Path, gate: threading.Event) -> None:
    checkpoints, (model, optimizer) = beside(), make()
    train(model, optimizer)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    moments = [s["exp_avg"].clone() for s in optimizer.state.values()]
    checkpoints.save(tmp_path, step=1, model=model, optimizer=optimizer, state={"at": 1})
    for _ in range(3):
        train(model, optimizer)
    assert newest_good(tmp_path) is None
    gate.set()
    checkpoints.wait()
    again, its_optimizer = make()
    assert checkpoints.restore(tmp_path, model=again, optimizer=its_optimizer) == (1, {"at": 1})
    assert all(torch.equal(p, before[name]) for name, p in again.named_parameters())
    restored = [s["exp_avg"] for s in its_optimizer.state.values()]
    assert all(torch.equal(*pair) for pair in zip(restored, moments, strict=True))
    assert not torch.equal(model.weight, before["weight"])  # pyright: ignore


def test_the_files_are_those_that_are_written_at_once(tmp_path: Path) -> None:
    model, optimizer = make()
    train(model, optimizer)
    contents = []
    for name, writer in (("a", SyncWriter()), ("b", BackgroundWriter())):
        checkpoints = Checkpoints(every=1, keep_last=1, writer=writer)
        for step in (1, 2):  # the second time into the copies of the first
            path = checkpoints.save(
                tmp_path / name, step=step, model=model, optimizer=optimizer, state={}
            )
        checkpoints.wait()
        contents.append({file.name: file.read_bytes() for file in path.iterdir()})
    assert contents[0] == contents[1]


def test_an_error_reaches_the_run_once_in_the_same_words(tmp_path: Path) -> None:
    checkpoints, (model, optimizer) = beside(), make()
    (tmp_path / "file").write_text("not a directory")
    parts = {"model": model, "optimizer": optimizer, "state": {}}
    parts["directory"] = tmp_path / "file" / "run"
    checkpoints.save(step=1, **parts)
    with pytest.raises(CheckpointError, match=r"Not a directory\); give the run a directory that"):
        checkpoints.save(step=2, **parts)
    checkpoints.wait()


def test_the_end_of_a_run_waits(tmp_path: Path, gate: threading.Event) -> None:
    checkpoints, (model, optimizer) = beside(), make()
    with checkpoints.finishing():
        checkpoints.save(tmp_path, step=1, model=model, optimizer=optimizer, state={})
        threading.Timer(0.2, gate.set).start()
    assert newest_good(tmp_path) == 1


def test_a_failed_write_hides_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints, (model, optimizer) = beside(), make()
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(RuntimeError, match="^diverged$"), checkpoints.finishing():
        run = tmp_path / "file" / "run"
        checkpoints.save(run, step=1, model=model, optimizer=optimizer, state={})
        raise RuntimeError("diverged")
    assert "cannot be written (Not a directory)" in capsys.readouterr().err


def test_who_leaves_at_once_does_not_wait(tmp_path: Path, gate: threading.Event) -> None:
    checkpoints, (model, optimizer) = beside(), make()
    with pytest.raises(KeyboardInterrupt), checkpoints.finishing():
        checkpoints.save(tmp_path, step=1, model=model, optimizer=optimizer, state={})
        raise KeyboardInterrupt
    assert newest_good(tmp_path) is None
    gate.set()
    checkpoints.wait()


SCRIPT = Path(__file__).with_name("full_disk.py")
pytestmark = pytest.mark.xdist_group("sharded")


def test_where_one_cannot_write_its_part_there_is_no_checkpoint(tmp_path: Path) -> None:
    outputs = run_ranks(2, SCRIPT, tmp_path, folder=tmp_path)
    messages = sorted("".join(outputs).splitlines())
    assert messages[0].startswith("0 ParallelError process 1 failed: ")
    assert messages[1].startswith("1 CheckpointError ")
    assert all("step_00000002 cannot be written (No space left on device)" in it for it in messages)
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["step_00000001"]
