"""What share of a training step of `base` is not the model's: data, numbers, trackers, checks.

    OMP_NUM_THREADS=1 python benchmarks/training/overhead.py

The command's own run, with its graph, its checks and its trackers; one more tracker reads the
clock. Of the time from one step's row to the next, the phases forward, backward and optimizer
are the model's, and all that is left is not. Time is the CPU time of the thread that trains, in
which other programs do not show; with more threads than one it would not count what they compute.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fidgpt.compose.composition import compose
from fidgpt.runs.building import build_trainer
from fidgpt.runs.directories import new_run
from fidgpt.train import Facts, RunDirectory
from fidgpt.train.trackers.trackers import Row

WARM_UP_STEPS = 5
OF_THE_MODEL = ("forward", "backward", "optimizer")
NAMED = (*OF_THE_MODEL, "data")


class Shares:
    """Keeps, of every step, the seconds of each phase and those from row to row."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._last = 0.0

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        self._last = time.perf_counter()

    def log(self, row: Row) -> None:
        now = time.perf_counter()
        phases = {name: row[f"seconds/{name}"] for name in NAMED}
        self.steps.append({**phases, "whole": now - self._last})
        self._last = now

    def print(self, text: str) -> None:
        pass

    def finish(self) -> None:
        pass


def measure(directives: list[str], *, num_steps: int) -> list[dict[str, float]]:
    """Seconds of each step that was measured, by phase."""
    all_directives = [*directives, f"set:num_steps={num_steps}", f"set:checkpoints.every={10**6}"]
    cfg = compose(all_directives).config
    trainer = build_trainer(cfg)
    shares = Shares()
    trainer.trackers = [*trainer.trackers, shares]
    trainer.evaluators, trainer.samples = {}, None  # these are no step
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(new_run(cfg, directives=all_directives, path=str(Path(folder) / "run")))
    return shares.steps[WARM_UP_STEPS:-1]


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description="The share of a step that is not the model's.")
    parser.add_argument("--config", action="append", help="a directive; config:base unless said")
    parser.add_argument("--num_steps", type=int, default=150)
    asked = parser.parse_args()
    time.perf_counter = time.thread_time  # all clocks of the run
    steps = measure(asked.config or ["config:base"], num_steps=asked.num_steps)
    whole = statistics.median(step["whole"] for step in steps)
    rest = [step["whole"] - sum(step[name] for name in OF_THE_MODEL) for step in steps]
    rows = {name: [step[name] for step in steps] for name in NAMED}
    rows["all but the model's three"] = rest
    print(f"{len(steps)} steps of {1e3 * whole:.1f} ms", file=sys.stderr)
    print("| | ms, median | share of the step |\n|---|---|---|")
    for name, seconds in rows.items():
        median = statistics.median(seconds)
        print(f"| {name} | {1e3 * median:.2f} | {median / whole:.2%} |")


if __name__ == "__main__":
    main()
