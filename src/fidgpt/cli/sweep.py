"""The command `sweep.py`: every combination of some directives, each trained once, in turn."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from fidgpt.cli import app, asked
from fidgpt.cli.flags import FLAGS, refuse_arguments

if TYPE_CHECKING:
    from fidgpt.cli.points import Point

flags.DEFINE_multi_string(
    "sweep",
    [],
    "An axis: a directive with several values, such as tag:LearningRate=1e-3,3e-3 or "
    "fiddler:use_rope,use_learned_positions. Axes multiply.",
)


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> int | None:
    """Trains every point that is not done yet; returns 1 when one of them failed."""
    refuse_arguments(arguments)
    if asked.answered():
        return None
    from fidgpt.cli.points import points_of  # late: --help and --list load no torch
    from fidgpt.cli.runs import name_of_base
    from fidgpt.graph import ConfigError

    if not FLAGS.sweep:
        raise ConfigError("name an axis: --sweep=tag:LearningRate=1e-3,3e-3")
    allowed = tuple(FLAGS.allow)
    points = points_of(FLAGS.config, FLAGS.sweep, allowed=allowed)
    if FLAGS.print:
        _print_table(points, {})
        return None
    name = f"sweep-{name_of_base(FLAGS.config)}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory = Path(FLAGS.run_dir or Path("runs") / name)
    results = {point.fingerprint: _train(point, directory, allowed) for point in points}
    _print_table(points, results)
    return 1 if None in results.values() else 0


def _train(
    point: "Point", directory: Path, allowed: tuple[str, ...]
) -> dict[str, float] | None:
    """The last row of a point's metrics; trains it first, or to its end, unless that was done."""
    from fidgpt.train.trackers import read_rows

    path = directory / point.fingerprint[:12]
    command = [sys.executable, "-m", "fidgpt.cli.train"]
    command += [f"--allow={package}" for package in allowed]
    if (path / "done.json").exists():
        return json.loads((path / "done.json").read_text())
    if (path / "config.json").exists():
        command += [f"--resume={path}"]
    else:
        command += [f"--config={directive}" for directive in point.directives]
        command += ["--allow_noop"]  # of an axis's values, one may be what the base says already
        command += [f"--run_dir={path}"]
    print(f"\n{' '.join(point.varied)}", flush=True)
    if subprocess.run(command, check=False).returncode != 0:
        return None
    last = read_rows(path / "metrics.jsonl")[-1]
    (path / "done.json").write_text(json.dumps(last) + "\n")
    return last


def _print_table(points: list["Point"], results: dict[str, dict[str, float] | None]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("point", "fingerprint", box=None, padding=(0, 2, 0, 0))
    for column in ("loss", "validation/loss") if results else ():
        table.add_column(column, justify="right")
    for point in points:
        last = results.get(point.fingerprint) or {}
        numbers = [
            f"{last[key]:.4f}" if key in last else "-" for key in ("loss", "validation/loss")
        ]
        table.add_row(" ".join(point.varied), point.fingerprint[:12], *(numbers if results else ()))
    Console(highlight=False).print(table)


if __name__ == "__main__":
    run()
