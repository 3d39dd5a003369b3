"""Facts of an imaginary run, for tests of trackers."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fidgpt.cost import ParameterCount
from fidgpt.train.estimates.facts import Facts
from fidgpt.train.estimates.footprint import Footprint
from fidgpt.train.run_directory import RunDirectory
from fidgpt.train.trackers.trackers import Tracker, Trackers

FACTS = Facts(
    parameters=ParameterCount(total=10, active=10, embedding=0),
    trained_parameters=10,
    shared={"a": ["b"]},
    flops_per_token=60,
    tokens=80,
    num_steps=10,
    tokens_per_step=8,
    device=torch.device("cpu"),
    world_size=1,
    precision="Float32",
    peak_flops=1e9,
    memory=Footprint(
        weights=40,
        copy=0,
        gradients=40,
        full_gradients=40,
        optimizer=80,
        average=0,
        activations=None,
        num_sequences=2,
        is_split=False,
    ),
    evaluators=("validation",),
)


def metrics_row(step: int) -> dict[str, Any]:
    """What a step would have measured."""
    speed = {"step_seconds": 1.6, "tokens_per_second": 5.0, "utilisation": 0.25}
    return {"step": step, "loss": 1 / 3, "learning_rate": 3e-4, "grad_norm": 1.25, **speed}


def until(holds: Callable[[], object]) -> None:
    """Waits for what a thread or another process does."""
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


class RecordingTracker:
    """A tracker that records what is printed."""

    def __init__(self) -> None:
        self.printed: list[str] = []

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        """Ignore it."""

    def log(self, row: dict[str, Any]) -> None:
        """Ignore it."""

    def print(self, text: str) -> None:
        self.printed.append(text)

    def finish(self) -> None:
        """Do nothing."""


@contextlib.contextmanager
def tracking(run: Path | RunDirectory, *trackers: Tracker, step: int = 0) -> Iterator[Trackers]:
    """Start trackers of a run after a step, and finish them."""
    run = run if isinstance(run, RunDirectory) else RunDirectory(run, texts={})
    with Trackers(list(trackers)) as several:
        several.start(run, FACTS, step=step)
        yield several
