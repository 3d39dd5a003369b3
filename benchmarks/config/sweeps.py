"""How long it takes to check all points of a sweep before it starts, and to run them.

    python benchmarks/config/sweeps.py --points=500,2000,10000
    python benchmarks/config/sweeps.py --run=20,100

Each cell is a process of its own. Checking: the CPU time of making, naming and checking the points,
without the imports, and the peak memory of the process. Running: wall and CPU seconds of points of
`debug`, two at a time, in forked processes and in new ones, with the imports.
"""

import argparse
import contextlib
import io
import resource
import subprocess
import sys
import tempfile
import time

# Axes by the number of points, which 100 divides.
SWEEPS = {
    "set": lambda n: [f"set:optimizer.lr=lin(0.001,0.1,{n // 10})", "set:seed=range(0,10)"],
    "tag": lambda n: [f"tag:LearningRate=lin(0.001,0.1,{n // 4})", "tag:WeightDecay=lin(0,0.3,4)"],
    "models": lambda n: ["tag:HiddenDim=32,64,96,128", f"tag:LearningRate=lin(0.001,0.1,{n // 4})"],
    "fiddlers first": lambda n: [PARTS, f"tag:LearningRate=lin(0.001,0.1,{n // 5})"],
    "fiddlers last": lambda n: [f"tag:LearningRate=lin(0.001,0.1,{n // 5})", PARTS],
    "mixed": lambda n: [
        *(f"set:num_steps=range(10,{10 + n // 50})", "tag:HiddenDim=32,64", PARTS),
        "set:seed+=range(0,5)",
    ],
}
PARTS = "fiddler:use_gelu,use_gqa(1),use_alibi,use_moe,use_qk_norm"


def measure(name: str, count: int) -> str:
    """Check a sweep in this process; return its CPU time and peak memory."""
    from fidgpt.sweep import axis, plan

    before = resource.getrusage(resource.RUSAGE_SELF)
    points = plan(["config:debug", *map(axis, SWEEPS[name](count))]).points
    assert len(points) == count
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{seconds:.1f} s, {seconds / count * 1e3:.2f} ms a point, {after.ru_maxrss >> 10} MB"


def run(name: str, count: int) -> str:
    """Run a sweep of `debug` with two jobs in this process; return its wall and CPU time."""
    from fidgpt import forking
    from fidgpt.sweep import Sweep, axis
    from fidgpt.sweep.runners.jobs import LocalRunner

    if name == "new":
        forking.is_safe = lambda: False
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        rates = axis(f"tag:LearningRate=log(0.0001,0.01,{count})")
        begin = time.perf_counter()
        results = Sweep("config:debug", rates, directory=folder).run(runner=LocalRunner(jobs=2))
        wall = time.perf_counter() - begin
    assert {row["status"] for row in results} == {"finished"}
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return f"{wall:.1f} s, {sum(one.ru_utime + one.ru_stime for one in used):.1f} CPU s"


def main() -> None:
    """Print a table: a row for each sweep, a column for each number of points."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", help="numbers of points to run, in place of checking them")
    parser.add_argument("--points", default="500,2000,10000", help="numbers of points")
    parser.add_argument("--sweep", action="append", choices=SWEEPS, help="all unless given")
    parser.add_argument("--one", help="NAME:COUNT, measured in this process")
    args = parser.parse_args()
    if args.one:
        name, _, count = args.one.rpartition(":")
        print((run if args.run else measure)(name, int(count)))
        return
    counts = [int(one) for one in (args.run or args.points).split(",")]
    again = [sys.executable, __file__, *(["--run=1"] if args.run else [])]
    print(f"| axes | {' | '.join(f'{count:,} points' for count in counts)} |")
    print(f"|---|{'---|' * len(counts)}")
    for name in ["forked", "new"] if args.run else args.sweep or SWEEPS:
        commands = [[*again, f"--one={name}:{count}"] for count in counts]
        cells = [subprocess.check_output(one, text=True).strip() for one in commands]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
