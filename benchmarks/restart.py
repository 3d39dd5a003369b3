"""Kill one of several processes, and time what passes until the run takes its next step.

`python benchmarks/restart.py --processes=4` trains `config:debug`, kills a process with SIGKILL,
and prints the seconds of each phase on the process that was last, as a Markdown table, and what all
processes computed in that time, which other work on the machine does not change. Arguments that it
does not know go to the training command.
"""

import argparse
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARKS = "FIDGPT_BENCHMARK_MARKS"  # where processes write when they were done with a phase
PHASES = ("noticed", "imports", "config", "rendezvous", "text", "loading", "first step")
COMPUTED = "processor seconds of all processes"
BEFORE = 10  # steps before the kill


def work() -> None:
    """Train as the command does, and leave the time at the end of each phase of this start."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    marks = {"noticed": time.time() - age}

    from fidgpt.cli import train
    from fidgpt.parallel import DataParallel
    from fidgpt.runs import building  # noqa: F401 # all that the command imports
    from fidgpt.train import Trainer, TrainStep

    def marked(kind: Any, name: str, *, before: str | None = None, after: str) -> None:
        function: Callable[..., Any] = getattr(kind, name)

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if before:
                marks.setdefault(before, time.time())
            result = function(*arguments, **options)
            if after not in marks:
                marks[after] = time.time()
                if after == PHASES[-1]:
                    marks[COMPUTED] = time.process_time()
                    path = Path(os.environ[MARKS]) / f"{marks['noticed']}-{os.environ['RANK']}"
                    path.write_text(json.dumps(marks))
            return result

        setattr(kind, name, call)

    marks["imports"] = time.time()
    marked(DataParallel, "__enter__", before="config", after="rendezvous")
    marked(Trainer, "prepare", after="text")
    marked(Trainer, "setup", after="loading")
    marked(TrainStep, "launch", after=PHASES[-1])
    train.run()


def measure(
    arguments: list[str], *, processes: int, flags: list[str], folder: Path
) -> dict[str, float]:
    """Return the seconds of each phase from a kill to the next step."""
    run, marks = folder / "run", folder / "marks"
    marks.mkdir()
    command = [
        *(sys.executable, "-m", "fidgpt.launch", *flags),
        "--standalone",
        f"--nproc-per-node={processes}",
        "--max-restarts=1",
        __file__,
        "--config=config:debug",
        "--config=set:num_steps=1000000",
        f"--config=set:batch_size={2 * processes}",
        f"--config=set:checkpoints.every={BEFORE}",
        *arguments,
        f"--run_dir={run}",
        "--auto_resume",
    ]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, MARKS: str(marks)}
    with (folder / "output").open("wb") as output:
        launched = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        while not any((run / "checkpoints").glob("step_*")):
            if launched.poll() is not None:
                raise RuntimeError((folder / "output").read_text()[-3000:])
            time.sleep(0.1)
        begun = {*marks.iterdir()}
        children = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
        killed = time.time()
        os.kill(int(children[-1]), signal.SIGKILL)
        while len({*marks.iterdir()} - begun) < processes:
            if launched.poll() is not None:
                raise RuntimeError((folder / "output").read_text()[-3000:])
            time.sleep(0.1)
        time.sleep(0.1)  # or the last one may not be whole
        ends = [json.loads(path.read_text()) for path in {*marks.iterdir()} - begun]
    finally:
        launched.terminate()
        launched.wait()
    last = max(ends, key=lambda one: one[PHASES[-1]])
    begins = [killed, *(last[phase] for phase in PHASES)]
    seconds = {phase: last[phase] - begin for phase, begin in zip(PHASES, begins, strict=False)}
    return {**seconds, COMPUTED: sum(one[COMPUTED] for one in ends)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--no-preload", action="store_true", help="as the launcher's")
    parser.add_argument("--times", type=int, default=1, help="of which the medians are printed")
    options, arguments = parser.parse_known_args()
    measured: list[dict[str, float]] = []
    for _ in range(options.times):
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--no-preload"] * options.no_preload
            measured.append(
                measure(arguments, processes=options.processes, flags=flags, folder=Path(folder))
            )
    medians = {name: statistics.median(one[name] for one in measured) for name in measured[0]}
    computed = medians.pop(COMPUTED)
    print("| phase | seconds |\n|---|--:|")
    for phase, seconds in medians.items():
        print(f"| {phase} | {seconds:.2f} |")
    print(f"| from the kill to the next step | {sum(medians.values()):.2f} |")
    print(f"| {COMPUTED} | {computed:.2f} |")


if __name__ == "__main__":
    work() if MARKS in os.environ else main()
