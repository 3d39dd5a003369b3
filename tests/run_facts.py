"""Facts of an imaginary run, for tests of trackers."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fidgpt.cost import Flops, ForwardPass, ParameterCount
from fidgpt.parallel import Mesh
from fidgpt.plan import Cluster, Device, Memory, Plan, Setting
from fidgpt.plan.timing import Seconds, Simulation
from fidgpt.train.estimates.facts import Facts
from fidgpt.train.run_directory import RunDirectory
from fidgpt.train.trackers.trackers import Row, Tracker, Trackers

FACTS = Facts(
    parameters=ParameterCount(total=10, active=10, embedding=0),
    trained_parameters=10,
    shared={"a": ["b"]},
    forward=ForwardPass({"": Flops(20.0)}, {}),
    tokens=80,
    num_steps=10,
    tokens_per_step=8,
    precision="float32",
    plan=Plan(
        setting=Setting(mesh=Mesh(), micro_batch=2, num_micro_batches=1),
        cluster=Cluster(
            device=Device(
                name="cpu",
                title="a CPU",
                flops={"float32": 1e9},
                memory=1000,
                bandwidth=1e9,
                link=1e9,
                source="imagined",
            ),
            size=1,
        ),
        sequences=2,
        memory=(Memory(weights=40, gradients=40, optimizer=80),),
        worst=0,
        seconds=Seconds(products=1.0),
        bubble=0.0,
        updating=0.5,
        step=1.5,
        tokens_per_second=5.0,
        utilisation=0.3,
        days=15 / 86400,
        simulation=Simulation(1.0, (1.0,)),
    ),
    evaluators=("validation",),
)


def metrics_row(step: int) -> dict[str, Any]:
    """What a step would have measured."""
    speed = {"step_seconds": 1.6, "tokens_per_second": 5.0, "utilisation": 0.25}
    return {"step": step, "loss": 1 / 3, "learning_rate": 3e-4, "grad_norm": 1.25, **speed}


def reproducible(row: Row) -> Row:
    """Return the metrics of a row that do not depend on the speed or memory of the machine."""
    of_machine = ("step_seconds", "tokens_per_second", "utilisation", "memory")
    of_time = ("seconds/", "goodput/", "slowest/")
    return {k: v for k, v in row.items() if k not in of_machine and not k.startswith(of_time)}


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
