"""Which checkpoints are saved and kept, on the disk and in a mirror."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from torch import nn

from fidgpt.train import (
    CheckpointError,
    Checkpoints,
    EveryMinutes,
    KeepBest,
    KeepEvery,
    Mirror,
    initial_weights,
)
from fidgpt.train.checkpoints import checkpoints as policy
from fidgpt.train.checkpoints import newest_good
from fidgpt.train.checkpoints.manifest import BEST, REGULAR, Saved, find, read_manifest
from fidgpt.train.checkpoints.mirror import CLAIM


class Clock:
    """Returns the seconds that it was set to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def run(
    checkpoints: Checkpoints,
    path: Path,
    num_steps: int,
    *,
    rows: Mapping[int, Mapping[str, Any]] | None = None,
    clock: Clock | None = None,
    begin: int = 0,
) -> list[int]:
    """Saves as a run does; returns the steps that stay."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(begin + 1, num_steps + 1):
        if clock is not None:
            clock.seconds = 60.0 * step
        row = (rows or {}).get(step, {})
        reasons = checkpoints.due(step, num_steps=num_steps, directory=path, row=row)
        if reasons:
            parts = {"model": model, "optimizer": optimizer, "state": {}}
            checkpoints.save(path, step=step, reasons=reasons, row=row, **parts)
    return [*find(path)]


@pytest.mark.parametrize(
    ("every", "keep_last", "stay"), [(None, 1, [10]), (3, 2, [9, 10]), (4, 9, [4, 8, 10])]
)
def test_the_last_few_stay(every: int | None, keep_last: int, stay: list[int], tmp_path: Path):
    assert run(Checkpoints(every=every, keep_last=keep_last), tmp_path, 10) == stay


def test_dense_at_first_and_sparse_later_for_good(tmp_path: Path) -> None:
    keep = [KeepEvery(every=2, until=6), KeepEvery(every=5, until=15), KeepEvery(every=10)]
    planned = [s for s in range(41) if policy.is_permanent(s, keep[::-1])]
    assert planned == [2, 4, 6, 10, 15, 20, 30, 40]
    checkpoints = Checkpoints(every=7, keep_last=1, keep=keep)
    assert run(checkpoints, tmp_path, 29) == [2, 4, 6, 10, 15, 20, 29]


def test_saved_by_time_the_one_before_goes(tmp_path: Path) -> None:
    stay = []
    for end in (4, 8, 11, 14, 25):  # a step takes a minute
        clock = Clock()
        timed = Checkpoints(every=10, keep_last=2, temporary=EveryMinutes(3.0, clock=clock))
        stay.append(run(timed, tmp_path / str(end), end, clock=clock))
    # The last step is a regular one; what was saved by time is gone then.
    assert stay == [[4], [8], [10, 11], [10, 14], [20, 25]]


LOSSES = {2: 3.0, 4: 2.0, 6: 2.5, 8: 1.0, 10: 1.5, 12: 1.2}
ROWS = {step: {"validation/loss": loss} for step, loss in LOSSES.items()}


def test_the_best_stays_besides_the_last(tmp_path: Path) -> None:
    checkpoints = Checkpoints(every=5, keep_last=1, best=KeepBest("validation/loss"))
    assert run(checkpoints, tmp_path, 7, rows=ROWS) == [4, 7]
    assert run(checkpoints, tmp_path, 12, rows=ROWS, begin=7) == [8, 12]
    notes = read_manifest(find(tmp_path)[8])
    assert (notes["reasons"], notes["metrics"]) == ([BEST], {"validation/loss": 1.0})


def test_nan_is_never_the_best() -> None:
    saved = [Saved(1, [REGULAR], {"loss": 2.0}), Saved(2, [BEST], {"loss": float("nan")})]
    assert policy.best_of(saved, KeepBest("loss")) == saved[0]
    assert policy.best_of([Saved(1)], KeepBest("loss")) is None


def test_a_best_by_an_unknown_metric_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = Checkpoints(every=5, keep_last=1, best=KeepBest("validation/los"))
    for row in ({"loss": 1.0}, {"validation/loss": 2.0}, {"validation/loss": 1.0}):
        assert not checkpoints.due(1, num_steps=9, row=row)
    assert capsys.readouterr().err == (
        "warning: no best checkpoint is kept: nothing measures validation/los; "
        "validation measures validation/loss.\n"
    )


URL = "memory://bucket/run"


@pytest.fixture(autouse=True)
def storage() -> Iterator[Any]:
    """An empty store in memory."""
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/bucket"):
        system.rm("/bucket", recursive=True)


@pytest.fixture
def break_storage(storage: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has a method of the store fail from now on."""

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    return lambda method: monkeypatch.setattr(type(storage), method, refuse)


def checkpoints(url: str = URL, *, keep: Sequence[KeepEvery] = ()) -> Checkpoints:
    return Checkpoints(every=1, keep_last=2, keep=keep, mirror=Mirror(url))


def parts(value: float = 0.0) -> dict[str, Any]:
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, value)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters())}


def save(saver: Checkpoints, run: Path, *steps: int) -> None:
    for step in steps:
        reasons = saver.due(step, num_steps=99)
        saver.save(run, step=step, state={}, reasons=reasons, **parts(float(step)))


def there(storage: Any) -> list[str]:
    names = [path.rpartition("/")[2] for path in storage.ls("/bucket/run", detail=False)]
    return sorted(name for name in names if name != CLAIM)


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


def test_where_a_file_of_a_copy_is_missing_an_earlier_one_is_named(
    tmp_path: Path, storage: Any
) -> None:
    save(checkpoints(keep=[KeepEvery(every=1)]), identified(tmp_path / "old", "1"), 1, 2)
    storage.rm_file("/bucket/run/step_00000002/model.safetensors")
    run, saver = tmp_path / "new", checkpoints()
    Mirror(URL).restore_run(run)
    assert (run / "run_id.txt").read_text() == (tmp_path / "old/run_id.txt").read_text()
    saver.fetch(run, step=None)
    with pytest.raises(
        CheckpointError, match=r"safetensors cannot be read[\s\S]*good .* is step 1"
    ):
        saver.restore(run, **parts())
    assert saver.restore(run, step=1, **parts()) == (1, {})


@pytest.mark.parametrize("step", [None, 3])
def test_where_the_newest_copy_is_damaged_the_good_one_is_named(
    tmp_path: Path, storage: Any, step: int | None
) -> None:
    save(checkpoints(keep=[KeepEvery(every=1)]), tmp_path / "old", 1, 2, 3)
    for damaged in (2, 3):
        storage.pipe(f"/bucket/run/step_{damaged:08d}/model.safetensors", b"other")
    run, saver = tmp_path / "new", checkpoints()
    run.mkdir()
    saver.fetch(run, step=step)
    with pytest.raises(CheckpointError, match=r"The newest good checkpoint is step 1: .*_step=1"):
        saver.restore(run, step=step, **parts())
    assert saver.restore(run, step=1, **parts()) == (1, {})


def test_a_checkpoint_of_another_run_is_not_resumed(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for run in (first, second):
        run.mkdir()
        (run / "run_id.txt").write_text(f"{run.name}\n")
        save(Checkpoints(every=1, keep_last=1), run, 1)
    shutil.copytree(first / "checkpoints/step_00000001", second / "checkpoints/step_00000002")
    shutil.rmtree(second / "checkpoints/step_00000001")
    (second / "checkpoints/step_00000002").rename(second / "checkpoints/step_00000001")
    with pytest.raises(CheckpointError, match="was saved by another run than that of .*second"):
        Checkpoints(every=1, keep_last=1).restore(second, **parts())
    with pytest.raises(CheckpointError, match="was saved by another run than that of .*second"):
        initial_weights(nn.Linear(3, 2), second)
    save(Checkpoints(every=1, keep_last=9), second, 2)
    assert Checkpoints(every=1, keep_last=9).good_before(3, second, num_steps=9) == 2
    shutil.copytree(first / "checkpoints/step_00000001", tmp_path / "step_00000001")
    initial_weights(nn.Linear(3, 2), tmp_path / "step_00000001")
    shutil.rmtree(second / "checkpoints/step_00000002")
    (second / "run_id.txt").write_text("first\n")  # moved, and not another
    assert Checkpoints(every=1, keep_last=1).restore(second, **parts()) == (1, {})


def test_a_good_copy_replaces_a_damaged_original(tmp_path: Path) -> None:
    save(checkpoints(), tmp_path, 1)
    (tmp_path / "checkpoints/step_00000001/model.safetensors").write_bytes(b"other")
    checkpoints().fetch(tmp_path, step=None)
    assert checkpoints().restore(tmp_path, **parts()) == (1, {})


@pytest.mark.parametrize("by", ["the next checkpoint", "the end of the run"])
def test_a_failed_copy_is_reported_and_retried(
    by: str,
    tmp_path: Path,
    storage: Any,
    break_storage: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saver = checkpoints()
    with saver.finishing():
        break_storage("put_file")
        save(saver, tmp_path, 1)
        assert newest_good(tmp_path) == 1
        assert capsys.readouterr().err.splitlines() == [
            f"warning: step 1 was not copied to {URL} (ConnectionError: no route); it is complete "
            f"in {tmp_path}, and copying is retried with the next checkpoint."
        ]
        monkeypatch.undo()
        if by == "the next checkpoint":
            save(saver, tmp_path, 2)
            assert there(storage) == ["step_00000001", "step_00000002"]
    assert storage.exists("/bucket/run/step_00000001/manifest.json")


def test_a_new_run_deletes_no_copies_of_another(tmp_path: Path, storage: Any) -> None:
    first, second = identified(tmp_path / "first", "1"), identified(tmp_path / "second", "2")
    save(checkpoints(), first, 5, 6)
    with pytest.raises(CheckpointError, match=f"{URL} is the mirror of {first}, up to step 6") as e:
        checkpoints().claim_mirror(second, directory=second)
    assert f"{second} is another run" in str(e.value)
    assert there(storage) == ["step_00000005", "step_00000006"]
    with pytest.raises(CheckpointError, match=r"copied to nowhere://x \(ValueError: Protocol"):
        checkpoints("nowhere://x").claim_mirror(second, directory=second)


def test_a_folder_that_holds_something_else_is_refused_and_stays(
    tmp_path: Path, storage: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run = tmp_path / "theirs", identified(tmp_path / "run", "1")
    (folder / "step_00000007").mkdir(parents=True)
    (folder / "step_00000007" / "thesis.txt").write_text("years of work")
    saver = checkpoints(str(folder))
    with pytest.raises(CheckpointError, match="holds other files .step_00000007.: name an empty"):
        saver.claim_mirror(run, directory=run)
    with pytest.raises(CheckpointError, match="holds other files"):
        saver.fetch(run, step=None)
    save(saver, run, 7, 8)
    assert "holds other files" in capsys.readouterr().err
    assert [one.name for one in folder.rglob("*")] == ["step_00000007", "thesis.txt"]


def test_only_what_a_run_wrote_is_deleted_from_its_mirror(tmp_path: Path) -> None:
    folder, run = tmp_path / "copy", identified(tmp_path / "run", "1")
    saver = checkpoints(str(folder))
    save(saver, run, 1, 2)
    (folder / "step_00000001" / "notes.txt").write_text("mine")
    (folder / "step_00000004").mkdir()
    (folder / "step_00000004" / "thesis.txt").write_text("mine too")
    save(saver, run, 3, 4, 5, 6, 7)
    assert [one.name for one in (folder / "step_00000001").iterdir()] == ["notes.txt"]
    assert [one.name for one in (folder / "step_00000004").iterdir()] == ["thesis.txt"]
    assert not (folder / "step_00000003").exists()


def test_other_files_in_a_checkpoint_are_not_deleted_with_it(tmp_path: Path) -> None:
    saver = Checkpoints(every=1, keep_last=1)
    save(saver, tmp_path, 1)
    (find(tmp_path)[1] / "notes.txt").write_text("mine")
    save(saver, tmp_path, 2, 3)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["kept-step_00000001", "step_00000003"]


def identified(run: Path, name: str) -> Path:
    """A run directory that is known by what it was begun with."""
    run.mkdir()
    (run / "run_id.txt").write_text(name)
    (run / "config.json").write_text("{}")
    (run / "metrics.jsonl").write_text("a row")
    return run
