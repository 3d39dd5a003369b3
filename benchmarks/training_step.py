"""How many tokens a second a training step takes in, fidgpt's beside those of its peers.

    python benchmarks/training_step.py --peers=PYTHON

Every contestant is a process of its own with the same number of threads. They train for a second
each in turn, round after round, so that whatever else the machine does meets them all alike. Peers
that are not installed are left out, and named.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from contestants import CONTESTANTS, SHAPES, Shape

from fidgpt.train.device import peak_flops

BASELINE = "PyTorch, float32"
OURS = ("PyTorch", "fidgpt")  # they need fidgpt; the peers may live in another environment


class Contestant:
    """A process that trains for a moment whenever it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.turns: list[list[float]] = []
        self.peak_memory = 0

    @property
    def seconds(self) -> list[float]:
        """The time of every step of every turn."""
        return [seconds for turn in self.turns for seconds in turn]

    def train(self) -> None:
        """Takes a turn and remembers how long each step took."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        row = json.loads(self._process.stdout.readline())
        self.turns.append(row["seconds"])
        self.peak_memory = row["peak_memory"]


@contextmanager
def started(python: str, shape: str, name: str, threads: int) -> Iterator[Contestant | None]:
    """A contestant that is warm, or None if what it compares with is not installed."""
    command = [python, str(Path(__file__).with_name("contestants.py")), shape, name]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout and process.stderr
        ready = process.stdout.readline()
        if ready:
            print(f"{shape}: {name} (torch {json.loads(ready)['torch']})", file=sys.stderr)
        else:
            reason = process.stderr.read().strip().splitlines()[-1:]
            print(f"{shape}: {name} is left out: {''.join(reason)}", file=sys.stderr)
        yield Contestant(process) if ready else None
    finally:
        process.kill()
        process.wait()


def compare(
    shape: str, names: Iterable[str], *, rounds: int, threads: int, peers: str
) -> dict[str, Contestant]:
    """Lets the contestants of a shape take `rounds` turns."""
    with ExitStack() as stack:
        running = {}
        for name in names:
            python = sys.executable if name.startswith(OURS) else peers
            contestant = stack.enter_context(started(python, shape, name, threads))
            if contestant is not None:
                running[name] = contestant
        for _ in range(rounds):
            for contestant in running.values():
                contestant.train()
    return running


def table(shape: Shape, results: dict[str, Contestant]) -> str:
    """Tokens a second, and how many times the baseline that is, in Markdown.

    By the median of all steps; by the fastest step, which is what is left where other programs
    steal time; and the lowest and highest ratio of two medians of one round.
    """
    tokens = shape.batch_size * shape.seq_len
    base = results[BASELINE]
    lines = [
        "| | tokens/s | times, median | times, fastest | rounds from to | MiB at peak |",
        "|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        median = statistics.median(result.seconds)
        each = [
            statistics.median(theirs) / statistics.median(own)
            for theirs, own in zip(base.turns, result.turns, strict=True)
        ]
        lines.append(
            f"| {name} | {tokens / median:,.0f} | {statistics.median(base.seconds) / median:.2f} "
            f"| {min(base.seconds) / min(result.seconds):.2f} | {min(each):.2f} {max(each):.2f} "
            f"| {result.peak_memory / 2**20:,.0f} |"
        )
    return "\n".join(lines)


def machine(threads: int) -> str:
    """The processor and how fast its matrix products are, which bounds every ratio above."""
    torch.set_num_threads(threads)
    peaks: dict[str, Any] = {
        str(dtype).removeprefix("torch."): peak_flops(torch.device("cpu"), dtype) / 1e9
        for dtype in (torch.float32, torch.bfloat16)
    }
    speeds = ", ".join(f"{name} {speed:,.0f}" for name, speed in peaks.items())
    return (
        f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {threads} threads, "
        f"torch {torch.__version__}; products of 1,024 x 1,024 in GFLOP/s: {speeds}"
    )


def main() -> None:
    """Prints one table for each shape."""
    parser = argparse.ArgumentParser(description="Training steps of fidgpt and its peers.")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="all unless said")
    parser.add_argument("--contestant", action="append", choices=CONTESTANTS, help="likewise")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peers", default=sys.executable, help="Python that has the peers")
    arguments = parser.parse_args()
    chosen = arguments.contestant or list(CONTESTANTS)
    print(machine(arguments.threads))
    for name in arguments.shape or SHAPES:
        results = compare(
            name,
            [BASELINE, *(each for each in chosen if each != BASELINE)],
            rounds=arguments.rounds,
            threads=arguments.threads,
            peers=arguments.peers,
        )
        shape = SHAPES[name]
        print(f"\n### {name}, {shape.batch_size} x {shape.seq_len} tokens\n")
        print(table(shape, results))


if __name__ == "__main__":
    main()
