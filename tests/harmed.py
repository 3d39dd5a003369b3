"""Runs whose batches do harm, for tests of what a run does about it."""

import math
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fiddle as fdl
import pytest
import torch
from run_facts import reproducible
from torch import Tensor, nn

from fidgpt import fiddlers
from fidgpt.data import Batch
from fidgpt.runs.building import build_trainer
from fidgpt.train import RunDirectory, Trainer
from fidgpt.train.state import TrainState
from fidgpt.train.trackers.trackers import Row, read_rows

Config = fdl.Config[Trainer]
NUM_STEPS = 9


class Harm:
    """Spoils the gradients of some batches, by their number in the order of the data."""

    def __init__(self, factors: dict[int, float]) -> None:
        self.factors = factors
        self.read: list[int] = []

    def __call__(self, parameters: Iterable[nn.Parameter]) -> None:
        *_, last = [p for p in parameters if p.grad is not None]
        assert last.grad is not None
        last.grad.mul_(self.factors.get(self.read[-1], 1.0))


class Run:
    """A run that is trained, in a directory of its own, by a trainer whose batches do harm."""

    def __init__(self, cfg: Config, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cfg, self.path, self._patch = cfg, path, monkeypatch
        cfg.num_steps, cfg.evaluators, cfg.checkpoints.keep_last = NUM_STEPS, {}, 9
        self.harm = Harm({})
        self.changes: list[dict[str, str]] = []
        self.last: TrainState

    def train(self, *, resume: bool = False, stop_in: int | None = None) -> list[Row]:
        """Trains, or on; a signal comes as batch `stop_in` is read."""
        made = build_trainer(self.cfg)
        if self.harm.factors:
            made.gradient_transform = self.harm
        read, begin = made.stream.batch, len(self.harm.read)

        def batch(step: int, **share: int) -> Batch:
            self.harm.read.append(step)
            if step == stop_in:
                signal.raise_signal(signal.SIGTERM)
            return read(step, **share)

        setup = made.setup

        def keep(*arguments: Any, **options: Any) -> TrainState:
            del self.harm.read[begin:]  # by the checks before the run
            self.last = setup(*arguments, **options)
            return self.last

        with self._patch.context() as patch:
            patch.setattr(made.stream, "batch", batch)
            patch.setattr(made, "setup", keep)
            directory = RunDirectory(self.path, texts={}, changes=self.changes)
            made.train(directory, resume=resume)
        return [reproducible(row) for row in read_rows(self.path / "metrics.jsonl")]

    def forget_after(self, step: int) -> None:
        """Takes the later checkpoints away, as if the run had been killed before them."""
        for path in (self.path / "checkpoints").glob("step_*"):
            if int(path.name[5:]) > step:
                shutil.rmtree(path)

    def state(self) -> dict[str, Any]:
        """All that a run goes on from, copied."""
        optimizer = self.last.optimizer.state_dict()["state"]
        return copied(
            {
                "model": dict(self.last.model.state_dict()),
                "optimizer": optimizer,
                "parts": {k: part.state_dict() for k, part in self.last.stateful.items()},
            }
        )


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Where two states differ in a bit."""
    if isinstance(one, dict) and one.keys() == other.keys():
        return [d for key in one for d in differences(one[key], other[key], f"{place}/{key}")]
    same = torch.equal(one, other) if isinstance(one, Tensor) else one == other
    return [] if same else [place]


def goes_back(run: Run) -> None:
    fiddlers.use_roll_back(run.cfg, most=2)
    run.harm.factors = {4: math.nan, 6: math.inf}
