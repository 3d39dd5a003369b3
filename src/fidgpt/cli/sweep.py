"""The command `sweep.py`: every combination of some directives, each trained once, in turn."""

import itertools
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from absl import flags
from rich.console import Console as RichConsole
from rich.table import Table

from fidgpt.cli import app
from fidgpt.cli.calls import split_at_commas
from fidgpt.cli.catalogue import own_catalogue
from fidgpt.cli.directives import compose, split_directive
from fidgpt.cli.flags import FLAGS, refuse_arguments
from fidgpt.cli.runs import build_trainer, name_of_base
from fidgpt.graph import ConfigError, fingerprint
from fidgpt.graph.errors import raise_all
from fidgpt.train.trackers import read_rows

flags.DEFINE_multi_string(
    "sweep",
    [],
    "An axis: a directive with several values, such as tag:LearningRate=1e-3,3e-3 or "
    "fiddler:use_rope,use_learned_positions. Axes multiply.",
)


@dataclass(frozen=True)
class Point:
    """One config of a sweep.

    Attributes:
      directives: all that makes the config, in order.
      varied: those that the axes chose.
      fingerprint: its identity; two points with one fingerprint are the same run.
    """

    directives: tuple[str, ...]
    varied: tuple[str, ...]
    fingerprint: str


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> int | None:
    """Trains every point that is not done yet; returns 1 when one of them failed."""
    refuse_arguments(arguments)
    if not FLAGS.sweep:
        raise ConfigError("name an axis: --sweep=tag:LearningRate=1e-3,3e-3")
    points = points_of(FLAGS.config, FLAGS.sweep)
    if FLAGS.print:
        _print_table(points, {})
        return None
    name = f"sweep-{name_of_base(FLAGS.config)}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory = Path(FLAGS.run_dir or Path("runs") / name)
    results = {point.fingerprint: _train(point, directory) for point in points}
    _print_table(points, results)
    return 1 if None in results.values() else 0


def points_of(directives: list[str], axes: list[str]) -> list[Point]:
    """The points of a sweep, composed and built, each fingerprint once.

    Raises:
      ConfigErrors: some points are wrong; all of them are named, and none may start.
    """
    points: dict[str, Point] = {}
    mistakes: list[str] = []
    catalogue = own_catalogue()
    for varied in itertools.product(*(axis_values(axis) for axis in axes)):
        directives_of_point = (*directives, *varied)
        try:
            cfg = compose(directives_of_point, catalogue)
        except ConfigError as error:
            mistakes.append(str(error))
            continue
        try:
            build_trainer(cfg)
            identity = fingerprint(cfg)
        except ConfigError as error:
            mistakes.append(f"{' '.join(varied)}:\n  {error}")
            continue
        points.setdefault(identity, Point(directives_of_point, varied, identity))
    raise_all(list(dict.fromkeys(mistakes)))
    return list(points.values())


def axis_values(axis: str) -> list[str]:
    """The directives that an axis stands for: one for each of its values.

    Raises:
      ConfigError: the axis has no values.
    """
    kind, rest = split_directive(axis)
    left, equals, right = rest.partition("=")
    is_assignment = kind in ("set", "tag")
    values = split_at_commas(right if is_assignment else rest)
    if not kind or not values or (is_assignment and not equals):
        raise ConfigError(f"--sweep={axis} has no values: write KIND:NAME=VALUE,VALUE.")
    prefix = f"{kind}:{left}=" if is_assignment else f"{kind}:"
    return [prefix + value.strip() for value in values]


def _train(point: Point, directory: Path) -> dict[str, float] | None:
    """The last row of a point's metrics; trains it first, or to its end, unless that was done."""
    path = directory / point.fingerprint[:12]
    command = [sys.executable, "-m", "fidgpt.cli.train"]
    if (path / "done.json").exists():
        return json.loads((path / "done.json").read_text())
    if (path / "config.json").exists():
        command += [f"--resume={path}"]
    else:
        command += [f"--config={directive}" for directive in point.directives]
        command += [f"--run_dir={path}"]
    print(f"\n{' '.join(point.varied)}", flush=True)
    if subprocess.run(command, check=False).returncode != 0:
        return None
    last = read_rows(path / "metrics.jsonl")[-1]
    (path / "done.json").write_text(json.dumps(last) + "\n")
    return last


def _print_table(points: list[Point], results: dict[str, dict[str, float] | None]) -> None:
    table = Table("point", "fingerprint", box=None, padding=(0, 2, 0, 0))
    for column in ("loss", "validation/loss") if results else ():
        table.add_column(column, justify="right")
    for point in points:
        last = results.get(point.fingerprint) or {}
        numbers = [
            f"{last[key]:.4f}" if key in last else "-" for key in ("loss", "validation/loss")
        ]
        table.add_row(" ".join(point.varied), point.fingerprint[:12], *(numbers if results else ()))
    RichConsole(highlight=False).print(table)


if __name__ == "__main__":
    run()
