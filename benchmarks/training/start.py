"""Seconds from the command to the end of the first step, beside `import torch` alone.

    python benchmarks/training/start.py

The two take turns. Each is stopped as soon as it says that it is so far; its CPU seconds are those
of all its threads and of what it started, such as git. On a machine that others use too, CPU
seconds are the figure to look at. What is prepared once is there before the first round: the text,
and Python's compiled files.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
IMPORT = [sys.executable, "-c", "import torch; print('step 1', flush=True)"]


class Taken(NamedTuple):
    """Seconds that something took."""

    wall: float
    cpu: float


def until_first_step(command: Sequence[str]) -> Taken:
    """Runs a command until it says that it is at step 1, and stops it there."""
    begin = time.perf_counter()
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # or each start would compile them again
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    is_there = any(line.startswith("step 1") for line in process.stdout)
    wall = time.perf_counter() - begin
    process.kill()
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0  # it was waited for, and Popen need not
    if not is_there:
        raise SystemExit(f"it never came to a step: {' '.join(command)}")
    return Taken(wall, used.ru_utime + used.ru_stime)


def measure(config: Sequence[str], *, rounds: int) -> dict[str, list[Taken]]:
    """What each of the two took, round after round; a round before them warms the caches."""
    train = [sys.executable, "train.py", *(f"--config={one}" for one in config)]
    found: dict[str, list[Taken]] = {"import torch": [], "to the end of the first step": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            commands = [IMPORT, [*train, f"--run_dir={folder}/{number}"]]
            for turns, command in zip(found.values(), commands, strict=True):
                turns.append(until_first_step(command))
    return {name: turns[1:] for name, turns in found.items()}


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description="From the command to the first step.")
    parser.add_argument("--config", action="append", help="a directive; config:base unless said")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    found = measure(asked.config or ["config:base"], rounds=asked.rounds)
    print("| | wall s, median | CPU s, median | CPU s, least |\n|---|---|---|---|")
    for name, turns in found.items():
        wall, cpu = ([taken[index] for taken in turns] for index in (0, 1))
        print(
            f"| {name} | {statistics.median(wall):.2f} | {statistics.median(cpu):.2f} "
            f"| {min(cpu):.2f} |"
        )
    pairs = [*zip(*found.values(), strict=True)]
    wall, cpu = ([run[index] - torch[index] for torch, run in pairs] for index in (0, 1))
    print(
        f"| more, round by round | {statistics.median(wall):.2f} | {statistics.median(cpu):.2f} "
        f"| {min(cpu):.2f} |"
    )


if __name__ == "__main__":
    main()
