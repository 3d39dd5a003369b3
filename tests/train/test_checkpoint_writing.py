"""Checkpoints written in the background, and by several processes."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from forked import Python, run_ranks
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


def test_a_removed_folder_is_not_made_again(tmp_path: Path, gate: threading.Event) -> None:
    checkpoints, (model, optimizer) = beside(), make()
    run = tmp_path / "run"
    checkpoints.save(run, step=1, model=model, optimizer=optimizer, state={})
    run.rmdir()
    gate.set()
    with pytest.raises(CheckpointError, match="cannot be written \\(No such file or directory\\)"):
        checkpoints.wait()
    assert [*tmp_path.iterdir()] == []


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


# The first rank waits for at most a second while the group is made, and for long afterwards.
_PROGRAM = """
import os, sys, time
import torch.distributed as dist
from fidgpt.parallel import DataParallel, ParallelError
from fidgpt.processes.background import BackgroundProcesses

try:
    with DataParallel(timeout=10.0) as parallel:
        if parallel.rank == 1 and sys.argv[1] == "lost":
            dist.new_group = lambda **_: os._exit(0)
        together = BackgroundProcesses().current()
        if parallel.rank == 1:
            time.sleep(2)
        print(together.gather(parallel.rank))
except ParallelError as error:
    print(error)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(_PROGRAM)
    return path


def test_a_process_lost_while_they_meet_is_not_waited_for(program: Path, tmp_path: Path) -> None:
    first, _ = run_ranks(2, program, "lost", folder=tmp_path)
    assert first.splitlines()[-1].startswith("process 1 of 2 (")


def test_once_met_they_wait_for_each_other_for_long(program: Path, tmp_path: Path) -> None:
    outputs = run_ranks(2, program, "late", folder=tmp_path)
    assert [text.splitlines()[-1] for text in outputs] == ["[0, 1]"] * 2


SCRIPT = Path(__file__).with_name("resharded.py")
pytestmark = pytest.mark.xdist_group("sharded")


def do(what: str, run: Path, kind: str, *, processes: int) -> str:
    if processes == 1:
        alone = Python(SCRIPT, what, run, kind, output=run / "output")
        assert alone.end(seconds=240) == 0, alone.output
        return alone.output
    return "".join(run_ranks(processes, SCRIPT, what, run, kind, folder=run))


def files(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints/step_00000003").glob("*.safetensors"))


def test_shards_of_two_are_restored_by_one_and_by_four(tmp_path: Path) -> None:
    do("save", tmp_path, "beside", processes=2)
    assert [name.split("-")[0] for name in files(tmp_path)] == sorted(
        2 * ["model", "optimizer", "stateful"]
    )
    do("compare", tmp_path, "sharded", processes=1)
    do("compare", tmp_path, "sharded", processes=4)


def test_what_one_saved_is_restored_in_shards(tmp_path: Path) -> None:
    do("save", tmp_path, "sharded", processes=1)
    do("compare", tmp_path, "sharded", processes=2)


def test_what_every_process_holds_is_written_once_and_is_plain_safetensors(tmp_path: Path) -> None:
    do("save", tmp_path, "replicated", processes=2)
    names = ["model.safetensors", "optimizer.safetensors", "stateful.safetensors"]
    assert files(tmp_path) == names
    stored = safetensors.torch.load_file(tmp_path / "checkpoints/step_00000003" / names[0])
    expected = torch.load(tmp_path / "expected.pt")["model"]
    assert stored.keys() == expected.keys() - {"tied"}  # which is `table`
    assert all(torch.equal(tensor, expected[name]) for name, tensor in stored.items())
    do("compare", tmp_path, "replicated", processes=1)


def test_where_one_cannot_write_its_part_there_is_no_checkpoint(tmp_path: Path) -> None:
    messages = sorted(do("break", tmp_path, "beside", processes=2).splitlines())
    assert messages[0].startswith("0 ParallelError process 1 failed: ")
    assert messages[1].startswith("1 CheckpointError ")
    assert all("step_00000002 cannot be written (No space left on device)" in it for it in messages)
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["step_00000001"]
