"""A checkpoint that is written beside the steps holds what was, and its errors are not lost."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fidgpt.train import CheckpointError, Checkpoints, WriteAtOnce, WriteBeside
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
    return Checkpoints(every=1, keep_last=9, writer=WriteBeside())


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Holds every writing until it is set."""
    gate, save = threading.Event(), saving.save_draft

    def wait_and_save(*arguments: Any, **named: Any) -> None:
        assert gate.wait(30)
        save(*arguments, **named)

    monkeypatch.setattr("fidgpt.train.checkpoints.checkpoints.save_draft", wait_and_save)
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
    for name, writer in (("a", WriteAtOnce()), ("b", WriteBeside())):
        checkpoints = Checkpoints(every=1, keep_last=1, writer=writer)
        for step in (1, 2):  # the second time into the copies of the first
            path = checkpoints.save(
                tmp_path / name, step=step, model=model, optimizer=optimizer, state={}
            )
        checkpoints.wait()
        contents.append({file.name: file.read_bytes() for file in path.iterdir()})
    assert contents[0] == contents[1]


def test_one_writing_at_a_time(tmp_path: Path, gate: threading.Event) -> None:
    checkpoints, (model, optimizer) = beside(), make()
    checkpoints.save(tmp_path, step=1, model=model, optimizer=optimizer, state={})
    threading.Timer(0.2, gate.set).start()
    checkpoints.save(tmp_path, step=2, model=model, optimizer=optimizer, state={})
    assert newest_good(tmp_path) in (1, 2)  # the first is whole
    checkpoints.wait()
    assert newest_good(tmp_path) == 2


SAVES: list[Callable[[Checkpoints, dict[str, Any]], object]] = [
    lambda checkpoints, parts: checkpoints.wait(),
    lambda checkpoints, parts: checkpoints.save(step=2, **parts),
]


@pytest.mark.parametrize("then", SAVES)
def test_an_error_reaches_the_run_once_in_the_same_words(
    then: Callable[[Checkpoints, dict[str, Any]], object], tmp_path: Path
) -> None:
    checkpoints, (model, optimizer) = beside(), make()
    (tmp_path / "file").write_text("not a directory")
    parts = {"model": model, "optimizer": optimizer, "state": {}}
    parts["directory"] = tmp_path / "file" / "run"
    checkpoints.save(step=1, **parts)
    with pytest.raises(CheckpointError, match=r"Not a directory\); give the run a directory that"):
        then(checkpoints, parts)
    checkpoints.wait()


def test_a_folder_that_goes_meanwhile_is_not_made_anew(
    tmp_path: Path, gate: threading.Event
) -> None:
    checkpoints, (model, optimizer) = beside(), make()
    run = tmp_path / "run"
    checkpoints.save(run, step=1, model=model, optimizer=optimizer, state={})
    run.rmdir()
    gate.set()
    with pytest.raises(CheckpointError, match="cannot be written \\(No such file or directory\\)"):
        checkpoints.wait()
    assert [*tmp_path.iterdir()] == []


def test_what_a_checkpoint_cannot_hold_is_told_at_once(tmp_path: Path) -> None:
    checkpoints, (model, optimizer) = beside(), make()
    with pytest.raises(CheckpointError, match=r"state\.hook is a builtin"):
        checkpoints.save(tmp_path, step=1, model=model, optimizer=optimizer, state={"hook": len})


def test_the_end_of_a_run_waits(tmp_path: Path, gate: threading.Event) -> None:
    checkpoints, (model, optimizer) = beside(), make()
    with checkpoints.finishing():
        checkpoints.save(tmp_path, step=1, model=model, optimizer=optimizer, state={})
        threading.Timer(0.2, gate.set).start()
    assert newest_good(tmp_path) == 1


def test_what_ended_a_run_is_told_and_a_failed_writing_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
