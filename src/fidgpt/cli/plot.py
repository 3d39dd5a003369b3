"""The command `python -m fidgpt.plot RUN ...`: curves of runs, beside each other in a file."""

import importlib.util
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from fidgpt.cli import app

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fidgpt.curves.series import Curve, Recorded


FLAGS = flags.FLAGS
_FEW = 5  # steps that a warning names

flags.DEFINE_string(
    "out",
    None,
    "The file to write: .html, .pdf, .png or .svg; curves.png unless given.",
    allow_override=True,  # one process may hold several commands
)
flags.DEFINE_multi_string(
    "metric",
    [],
    "What to draw, a panel each; `*` stands for anything. Repeated. The usual unless said.",
)
flags.DEFINE_enum("over", "step", ["step", "tokens", "time"], "What lies on the horizontal axis.")
flags.DEFINE_float(
    "smooth",
    None,
    "Average over so many steps; 0 for none. A hundredth of the run unless said.",
    0.0,
)
flags.DEFINE_integer("first_step", 0, "Leave out what comes before this step.", 0)
flags.DEFINE_bool("log_x", False, "A logarithmic horizontal axis.")
flags.DEFINE_bool("log_y", False, "Logarithmic vertical axes.")
flags.DEFINE_string("title", "", "What stands above the curves.")


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Draws the runs' metrics into the file.

    Raises:
      ConfigError: no run was named, the file is of no known kind, or Matplotlib is missing.
      RunError: a run or a metric is not there, or the file cannot be written.
    """
    # Late: --help loads neither torch nor Matplotlib.
    from fidgpt.curves.drawing import Look, draw, save
    from fidgpt.curves.series import chosen_metrics, read_runs
    from fidgpt.train import RunError

    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    out = Path(FLAGS.out or "curves.png")
    _refuse_mistakes(arguments, out)
    runs = read_runs([Path(argument) for argument in arguments])
    panels = {metric: _curves(runs, metric) for metric in chosen_metrics(runs, FLAGS.metric)}
    look = Look(over=FLAGS.over, log_x=FLAGS.log_x, log_y=FLAGS.log_y, title=FLAGS.title)
    try:
        save(draw(panels, look=look), panels, out, title=FLAGS.title)
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror}.") from error
    drawn = {curve.run for curves in panels.values() for curve in curves}
    names = [run.name for run in runs if run.name in drawn]
    print(f"{out} shows {', '.join(panels)} of {', '.join(names)}.")


def _refuse_mistakes(arguments: "Sequence[str]", out: Path) -> None:
    from fidgpt.curves.drawing import KINDS
    from fidgpt.graph import ConfigError

    if not arguments:
        raise ConfigError("name the runs to draw: python -m fidgpt.plot runs/NAME runs/OTHER")
    if out.suffix.removeprefix(".") not in KINDS:
        raise ConfigError(f"--out={out} must end in one of: {', '.join(f'.{k}' for k in KINDS)}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError('plots need Matplotlib. Install it with: pip install "fidgpt[plot]"')


def _curves(runs: "Sequence[Recorded]", metric: str) -> "list[Curve]":
    """The runs' curves of a metric; who has none is named on standard error.

    Raises:
      RunError: no run has a point of it.
    """
    from fidgpt.curves.series import curve_of
    from fidgpt.train import RunError

    curves = {
        run.name: curve_of(
            run, metric, over=FLAGS.over, smooth=FLAGS.smooth, first_step=FLAGS.first_step
        )
        for run in runs
    }
    drawn = {
        name: curve
        for name, curve in curves.items()
        if curve is not None and (not FLAGS.log_y or max(curve.y) > 0)
    }
    what = f"number of {metric}{' above 0, as --log_y needs' if FLAGS.log_y else ''}"
    for name in [name for name in curves if name not in drawn]:
        print(f"warning: {name} has no {what}.", file=sys.stderr)
    for name, curve in drawn.items():
        if curve.left_out:
            print(
                f"warning: {name} has numbers of {metric} that are left out, as they are NaN, "
                f"infinite or too large: at {_places(curve.left_out)}.",
                file=sys.stderr,
            )
    if not drawn:
        raise RunError(f"no run has a {what} that could be drawn; see --first_step.")
    return [*drawn.values()]


def _places(steps: "Sequence[int]") -> str:
    few = ", ".join(map(str, steps[:_FEW])) + (", ..." if len(steps) > _FEW else "")
    return f"step{'s' * (len(steps) > 1)} {few}"
