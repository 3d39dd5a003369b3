"""A second copy behind a URL follows the run, and brings it back where the disk was lost."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from torch import nn

from fidgpt.train import CheckpointError, Checkpoints, KeepBest, KeepEvery, Mirror
from fidgpt.train.checkpoints import newest_good
from fidgpt.train.checkpoints.manifest import find

URL = "memory://bucket/run"


@pytest.fixture(autouse=True)
def storage() -> Iterator[Any]:
    """An empty store in memory."""
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/bucket"):
        system.rm("/bucket", recursive=True)


def checkpoints(
    url: str = URL,
    *,
    keep_last: int = 2,
    keep: Sequence[KeepEvery] = (),
) -> Checkpoints:
    return Checkpoints(every=1, keep_last=keep_last, keep=keep, mirror=Mirror(url))


def parts(value: float = 0.0) -> dict[str, Any]:
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, value)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters())}


def save(saver: Checkpoints, run: Path, *steps: int) -> None:
    for step in steps:
        reasons = saver.due(step, num_steps=99)
        saver.save(run, step=step, state={}, reasons=reasons, **parts(float(step)))


def there(storage: Any) -> list[str]:
    return sorted(path.rpartition("/")[2] for path in storage.ls("/bucket/run", detail=False))


def test_the_copies_follow_what_stays(tmp_path: Path, storage: Any) -> None:
    save(checkpoints(keep=[KeepEvery(every=2, until=2)]), tmp_path, 1, 2, 3, 4, 5)
    assert there(storage) == ["step_00000002", "step_00000004", "step_00000005"]
    for step, path in find(tmp_path).items():
        for file in path.iterdir():
            assert storage.cat(f"/bucket/run/step_{step:08d}/{file.name}") == file.read_bytes()


@pytest.mark.parametrize(("step", "weight"), [(None, 3.0), (2, 2.0)])
def test_a_lost_disk(tmp_path: Path, step: int | None, weight: float) -> None:
    save(checkpoints(), tmp_path / "old", 1, 2, 3)
    shutil.rmtree(tmp_path / "old")
    given, saver, run = parts(), checkpoints(), tmp_path / "new"
    run.mkdir()
    saver.fetch(run, step=step)
    assert saver.restore(run, **given) == (int(weight), {})
    assert given["model"].weight.unique().tolist() == [weight]


def test_what_stays_is_the_same_there_after_a_lost_disk(tmp_path: Path, storage: Any) -> None:
    save(checkpoints(keep=[KeepEvery(every=2, until=2)]), tmp_path / "old", 1, 2, 3, 4)
    assert there(storage) == ["step_00000002", "step_00000003", "step_00000004"]
    again, run = checkpoints(), tmp_path / "new"
    run.mkdir()
    again.fetch(run, step=None)
    save(again, run, 5)
    assert there(storage) == ["step_00000002", "step_00000004", "step_00000005"]
    save(again, run, 6)
    assert there(storage) == ["step_00000002", "step_00000005", "step_00000006"]


def test_the_best_stays_there_after_a_lost_disk(tmp_path: Path, storage: Any) -> None:
    def measure(run: Path, step: int, value: float) -> None:
        row = {"loss": value}
        reasons = saver.due(step, num_steps=99, directory=run, row=row)
        saver.save(run, step=step, state={}, reasons=reasons, row=row, **parts())

    saver = Checkpoints(every=1, keep_last=1, best=KeepBest("loss"), mirror=Mirror(URL))
    measure(tmp_path / "old", 1, 3.0)
    measure(tmp_path / "old", 2, 4.0)
    (tmp_path / "new").mkdir()
    saver.fetch(tmp_path / "new", step=None)
    measure(tmp_path / "new", 3, 5.0)  # here the best is of step 2, there of step 1
    assert there(storage) == ["step_00000001", "step_00000003"]
    measure(tmp_path / "new", 4, 2.0)
    assert there(storage) == ["step_00000004"]


def test_local_files_serve_as_well(tmp_path: Path) -> None:
    saver, run = checkpoints(f"file://{tmp_path}/copy"), tmp_path / "run"
    save(saver, run, 1, 2, 3)
    shutil.rmtree(run)
    run.mkdir()
    saver.fetch(run, step=None)
    assert newest_good(run) == 3


def test_what_is_here_is_not_replaced(tmp_path: Path, storage: Any) -> None:
    save(checkpoints(), tmp_path, 1, 2)
    storage.rm("/bucket", recursive=True)
    checkpoints().fetch(tmp_path, step=None)
    checkpoints().fetch(tmp_path, step=1)
    assert list(find(tmp_path)) == [1, 2]


def test_a_copy_cut_short_does_not_exist(tmp_path: Path, storage: Any) -> None:
    save(checkpoints(), tmp_path / "old", 1, 2)
    storage.rm_file("/bucket/run/step_00000002/manifest.json")
    (tmp_path / "new").mkdir()
    checkpoints().fetch(tmp_path / "new", step=None)
    assert list(find(tmp_path / "new")) == [1]


def test_a_damaged_copy_is_refused(tmp_path: Path, storage: Any) -> None:
    save(checkpoints(), tmp_path / "old", 1)
    storage.pipe("/bucket/run/step_00000001/model.safetensors", b"other")
    (tmp_path / "new").mkdir()
    checkpoints().fetch(tmp_path / "new", step=None)
    with pytest.raises(CheckpointError, match="model.safetensors has 5 bytes instead of"):
        checkpoints().restore(tmp_path / "new", **parts())


def test_steps_left_behind_are_no_longer_there(tmp_path: Path, storage: Any) -> None:
    save(checkpoints(keep_last=9), tmp_path, 1, 2, 3)
    save(checkpoints(keep_last=9), tmp_path, 2)
    assert there(storage) == ["step_00000001", "step_00000002"]


def test_a_failed_copy_is_said_and_made_up_for(
    tmp_path: Path,
    storage: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object) -> None:
        raise ConnectionError("no route")

    saver = checkpoints()
    with monkeypatch.context() as broken:
        broken.setattr(type(storage), "put_file", refuse)
        save(saver, tmp_path, 1)
    assert newest_good(tmp_path) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"warning: step 1 was not copied to {URL} (ConnectionError: no route); it is complete "
        f"in {tmp_path}, and copying is retried with the next checkpoint."
    ]
    save(saver, tmp_path, 2)
    assert there(storage) == ["step_00000001", "step_00000002"]


def test_nothing_stays_of_copies_that_were_cut_short(
    tmp_path: Path, storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = checkpoints(keep_last=1)
    save(saver, tmp_path, 1)
    put, left = type(storage).put_file, [3]

    def some(self: Any, *arguments: Any, **options: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise ConnectionError("no route")
        put(self, *arguments, **options)

    with monkeypatch.context() as broken:
        broken.setattr(type(storage), "put_file", some)
        save(saver, tmp_path, 2)
    assert there(storage) == ["step_00000001", "step_00000002"]  # a part of it
    save(saver, tmp_path, 3)
    assert there(storage) == ["step_00000003"]


def test_a_run_that_ends_tries_again_to_copy_its_last_checkpoint(
    tmp_path: Path,
    storage: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    saver = checkpoints()
    with saver.finishing():
        save(saver, tmp_path, 1)
        with monkeypatch.context() as broken:
            broken.setattr(type(storage), "put_file", refuse)
            save(saver, tmp_path, 2)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert storage.exists("/bucket/run/step_00000002/manifest.json")


def test_a_new_run_deletes_no_copies_of_another(tmp_path: Path, storage: Any) -> None:
    checkpoints().require_free_mirror()
    save(checkpoints(), tmp_path, 5, 6)
    with pytest.raises(CheckpointError, match=f"{URL} holds the checkpoints of a run up to step 6"):
        checkpoints().require_free_mirror()
    assert there(storage) == ["step_00000005", "step_00000006"]
    with pytest.raises(CheckpointError, match=r"copied to nowhere://x \(ValueError: Protocol"):
        checkpoints("nowhere://x").require_free_mirror()


@pytest.mark.parametrize("url", ["", "3", "copies/first"])
def test_a_folder_that_would_depend_on_where_one_is_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be a URL"):
        Mirror(url)


def test_storage_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"copied from nowhere://x \(ValueError: Protocol"):
        checkpoints("nowhere://x").fetch(tmp_path, step=None)


def identified(run: Path, name: str) -> Path:
    """A run directory that is known by what it was begun with."""
    run.mkdir()
    (run / "environment.json").write_text(name)
    (run / "config.json").write_text("{}")
    (run / "metrics.jsonl").write_text("a row")
    return run


def test_the_files_of_the_run_come_back_with_it(tmp_path: Path) -> None:
    run = identified(tmp_path / "run", "first")
    save(checkpoints(), run, 1, 2)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    shutil.rmtree(run)
    checkpoints().mirror.bring(run)  # pyright: ignore[reportOptionalMemberAccess]
    checkpoints().fetch(run, step=None)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    assert newest_good(run) == 2
    assert {path.name for path in find(run)[2].iterdir()} >= {"manifest.json"}
    Mirror(URL).bring(run)  # another process of the same run


def test_what_is_no_copy_of_a_run_is_not_brought(tmp_path: Path, storage: Any) -> None:
    with pytest.raises(CheckpointError, match=f"{URL} holds no copy of a run"):
        Mirror(URL).bring(tmp_path / "new")
    save(checkpoints(), identified(tmp_path / "run", "first"), 1)
    with pytest.raises(CheckpointError, match="exists already, and is not the run that was copied"):
        Mirror(URL).bring(identified(tmp_path / "other", "second"))
    storage.rm("/bucket/run/step_00000001/run", recursive=True)
    with pytest.raises(CheckpointError, match="checkpoints without the files of their run"):
        Mirror(URL).bring(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_mirror_that_comes_later_deletes_no_copies_of_another(
    tmp_path: Path, storage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    save(checkpoints(), identified(tmp_path / "first", "first"), 5, 6)
    second = identified(tmp_path / "second", "second")
    Checkpoints(every=1, keep_last=1).save(second, step=1, state={}, **parts())
    for step in (None, 1, 6):
        with pytest.raises(CheckpointError, match=f"{URL} holds the checkpoints of another run"):
            checkpoints().fetch(second, step=step)
    save(checkpoints(), second, 2)
    assert "of another run than" in capsys.readouterr().err
    assert there(storage) == ["step_00000005", "step_00000006"]
    checkpoints().fetch(tmp_path / "first", step=None)


def test_a_run_goes_on_while_its_storage_is_away(
    tmp_path: Path,
    storage: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(checkpoints(), tmp_path, 1)

    def refuse(*_: object, **options: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(type(storage), "ls", refuse)
    checkpoints().fetch(tmp_path, step=None)
    assert capsys.readouterr().err.splitlines() == [
        f"warning: {URL} cannot be reached (ConnectionError: no route); the next checkpoint tries "
        "again."
    ]
