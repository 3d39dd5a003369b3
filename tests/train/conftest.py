"""The smallest whole run, for tests of training."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
from forked import run_ranks
from harmed import Run

from fidgpt.configs import debug
from fidgpt.graph import dump
from fidgpt.runs.building import build_trainer
from fidgpt.train import Outcome, RunDirectory, Trainer
from fidgpt.train.trackers.trackers import Row, read_rows


@pytest.fixture
def cfg() -> fdl.Config[Trainer]:
    """`debug`, silent, with a checkpoint every second step."""
    graph = debug()
    graph.trackers = graph.trackers[1:]
    graph.checkpoints.every = 2
    graph.samples = None
    return graph


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., list[Row]]:
    """Trains a graph in a directory of the test's own and returns the rows of its metrics."""

    def run(graph: fdl.Config[Trainer], name: str = "run", **options: Any) -> list[Row]:
        directory = RunDirectory(tmp_path / name, texts={"config.json": dump(graph)})
        outcome = build_trainer(graph).train(directory, **options)
        assert isinstance(outcome, Outcome)
        return read_rows(tmp_path / name / "metrics.jsonl")

    return run


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors only wait for the other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def on_two_processes() -> Callable[..., list[Any]]:
    """Does a task of `two_processes.py` in a folder; returns what each process leaves."""

    def leave(task: str, path: Path, *arguments: str) -> list[Any]:
        path.mkdir(exist_ok=True)
        script = Path(__file__).with_name("two_processes.py")
        run_ranks(2, script, task, path, *arguments, folder=path)
        return [torch.load(path / f"rank{rank}.pt") for rank in (0, 1)]

    return leave


@pytest.fixture
def run(cfg: fdl.Config[Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose batches may do harm."""
    return Run(cfg, tmp_path / "run", monkeypatch)
