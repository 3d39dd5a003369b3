"""The real trackers, each where its package is installed: what they keep of a run."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from run_facts import RecordingTracker, metrics_row, tracking, until
from small_models import apply

from fidgpt.graph import clone
from fidgpt.train import BackgroundTracker, MLflow, RunDirectory, TensorBoard, Trackio, WandB
from fidgpt.train.trackers import trackers as aside
from fidgpt.train.trackers.trackers import GROUP, Row

Known = dict[str, Any]
# What the packages themselves warn of; a warning of the project's own stays an error.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.slow,
]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a tracker keeps for the user, it keeps for the test alone."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "MLFLOW_TRACKING_URI", "TRACKIO_SPACE_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv(GROUP, "a-sweep")
    monkeypatch.setattr(aside, "PATIENCE", 60.0)  # MLflow makes its tables, on a busy machine


def tracked(
    make: Callable[[], BackgroundTracker],
    path: Path,
    steps: Sequence[int],
    *,
    before_end: Callable[[], object] = str,
) -> list[str]:
    """Log these steps of a run to a tracker; return what was printed."""
    recorder = RecordingTracker()
    path.mkdir(parents=True, exist_ok=True)
    (path / "command.txt").write_text("python train.py\n")
    identity = {"": "T", "model.blocks[0].hidden_dim": "256", "trackers['a']": "Console"}
    with tracking(
        RunDirectory(path, texts={}, identity=identity), recorder, make(), step=steps[0] - 1
    ) as trackers:
        for step in steps:
            trackers.log({**metrics_row(step), "loss": 1 / step, "validation/loss": 2.5})
        before_end()
    return recorder.printed


def of_tensorboard(path: Path) -> Known:
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore
        EventAccumulator,
    )

    read = EventAccumulator(str(path / "tensorboard")).Reload()
    text = read.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    return {
        "loss": [(event.step, event.value) for event in read.Scalars("loss")],
        "config": {"model.blocks[0].hidden_dim": 256} if "hidden_dim | 256" in text else text,
        "command": "python train.py" if "python train.py" in text else text,
    }


def of_mlflow(path: Path) -> Known:
    from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

    client = MlflowClient(tracking_uri=f"sqlite:///{path.parent}/mlflow.db")
    found = client.get_experiment_by_name("fidgpt")
    assert found is not None
    (run,) = client.search_runs([found.experiment_id])
    loss = [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "loss")]
    return {
        "loss": sorted(loss),
        "config": {"model.blocks[0].hidden_dim": int(run.data.params["model.blocks.0.hidden_dim"])},
        "command": run.data.params["run/command"],
        "group": run.data.tags["group"],
        "name": run.info.run_name,
    }


def of_trackio(path: Path) -> Known:
    from trackio.sqlite_storage import SQLiteStorage  # pyright: ignore[reportMissingImports]

    (name,) = SQLiteStorage.get_runs("fidgpt")
    config = SQLiteStorage.get_run_config("fidgpt", name) or {}
    return {
        "loss": [(row["step"], row["loss"]) for row in SQLiteStorage.get_logs("fidgpt", name)],
        "config": config,
        "command": config["run/command"],
        "group": config["_Group"],
        "name": name[: len(path.name)],
    }


SERVICES = {
    "tensorboard": (TensorBoard, of_tensorboard),
    "mlflow": (MLflow, of_mlflow),
    "trackio": (Trackio, of_trackio),
}


@pytest.mark.parametrize("name", SERVICES)
def test_a_run_that_goes_on_is_one_run_with_every_step_once(name: str, tmp_path: Path) -> None:
    make, read = SERVICES[name]
    for package in make.packages:
        pytest.importorskip(package)
    path = tmp_path / "runs" / "one"
    first = tracked(make, path, [1, 2, 3])
    tracked(make, path, [3, 4])
    known = read(path)
    assert known["loss"] == [(step, pytest.approx(1 / step)) for step in (1, 2, 3, 4)]
    assert known["config"]["model.blocks[0].hidden_dim"] == 256
    assert known["command"] == "python train.py"
    assert known.get("group", "a-sweep") == "a-sweep"
    assert known.get("name", "one") == "one"
    (where,) = first
    assert where.startswith(make.title)


def test_weights_and_biases_writes_offline_where_no_account_is_known(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    path = tmp_path / "night owl" / "one"
    (where,) = tracked(lambda: WandB(project="fidgpt"), path, [1, 2, 3])

    def is_written() -> bool:  # before the end, so that a kill leaves it
        written = [file.read_bytes() for file in path.glob("wandb/offline-run-*/run-*.wandb")]
        return len(written) == 2 and all(b"validation/loss" in content for content in written)

    tracked(lambda: WandB(project="fidgpt"), path, [3, 4], before_end=lambda: until(is_written))
    assert f"wandb sync '{path}/wandb'/offline-run-*" in where
    files = sorted((path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len({file.name for file in files}) == 1  # one id
    until(lambda: all(file.stat().st_size > 100 for file in files))  # another process writes
    first, second = (file.read_bytes() for file in files)
    for words in (b"a-sweep", b"model.blocks[0].hidden_dim", b"python train.py", b"fidgpt"):
        assert words in first
    word = b"validation/loss"  # in the history of every row, and in the summary after it
    assert first.count(word) == 3 * second.count(word) == 6
    assert sys.modules["wandb"].run is None


def test_trackers_change_no_number_of_a_run(cfg: Any, train: Callable[..., list[Row]]) -> None:
    packages = {TensorBoard: "tensorboard", MLflow: "mlflow", Trackio: "trackio", WandB: "wandb"}
    there = [kind for kind, name in packages.items() if importlib.util.find_spec(name)]
    if not there:
        pytest.skip("no tracker's package is installed")
    alone = train(clone(cfg), "alone")
    for kind in there:
        apply(cfg, f"use_{kind.__name__.lower()}")
    together = train(cfg, "together")
    assert [row["loss"] for row in together] == [row["loss"] for row in alone]
