"""The smallest whole run, for tests of training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
from harmed import Run

from fidgpt.compose.runs import build_trainer
from fidgpt.configs import debug
from fidgpt.graph import dump
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


@pytest.fixture
def run(cfg: fdl.Config[Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose batches may do harm."""
    return Run(cfg, tmp_path / "run", monkeypatch)
