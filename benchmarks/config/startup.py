"""How long a whole process takes that composes a config of 12 blocks, prints it, and ends.

    python benchmarks/config/startup.py --peers=PYTHON

CPU time of the process, the fastest of several that were started in turn with those of the others.
Then the same of `train.py --print`, and what it takes beyond `import torch`.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from peers import OURS, SYSTEMS

NUM_BLOCKS = 12
HERE = Path(__file__).parent
TRAIN = HERE.parents[1] / "train.py"
TORCH = "import torch"
PRINT = "train.py --config=config:base --print"


def cpu_seconds(command: list[str]) -> float | None:
    """CPU seconds of a process and its children; None if it failed."""
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os.execve(command[0], command, os.environ | {"OMP_NUM_THREADS": "1"})
    _, status, used = os.wait4(pid, 0)
    return None if status else used.ru_utime + used.ru_stime


def shows(name: str, peers: str) -> list[str]:
    """A command that prints the config of a system."""
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); from systems.with_{name} import System; "
        f"print(System().show(System().start({NUM_BLOCKS}, {{}})))"
    )
    return [sys.executable if name == OURS else peers, "-c", code]


def commands(names: Sequence[str], peers: str) -> dict[str, list[str]]:
    """Everything that is timed, by name."""
    return {
        **{name: shows(name, peers) for name in names},
        TORCH: [sys.executable, "-c", TORCH],
        PRINT: [sys.executable, str(TRAIN), *PRINT.split()[1:]],
    }


def fastest(
    timed: dict[str, list[str]], rounds: int, clock: Callable[[list[str]], float | None]
) -> dict[str, float]:
    """Seconds of the fastest round of each; what fails is left out, and the first one warms up."""
    seconds: dict[str, float] = {}
    working = {name: command for name, command in timed.items() if clock(command) is not None}
    for _ in range(rounds):
        for name, command in working.items():
            took = clock(command)
            if took is not None:
                seconds[name] = min(took, seconds.get(name, took))
    return seconds


def main() -> None:
    """Prints the table, and the difference that matters for train.py."""
    parser = argparse.ArgumentParser(description="Processes that print a config.")
    parser.add_argument("--peers", default=sys.executable, help="Python that has the peers")
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="all unless said")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    names = arguments.system or SYSTEMS
    seconds = fastest(commands(names, arguments.peers), arguments.rounds, cpu_seconds)
    print("| whole process | CPU | times fidgpt |\n|---|---|---|")
    for name, took in seconds.items():
        ratio = f"{took / seconds[OURS]:.2f}" if name in names and OURS in seconds else ""
        print(f"| {name} | {took:.2f} s | {ratio} |")
    if TORCH in seconds and PRINT in seconds:
        print(f"\n{PRINT} takes {seconds[PRINT] - seconds[TORCH]:.2f} s beyond `{TORCH}`.")


if __name__ == "__main__":
    main()
