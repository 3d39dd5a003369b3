"""Draw curves of runs beside each other in a file: `fidgpt plot runs/NAME runs/OTHER`."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from fidgpt.cli import app
from fidgpt.errors import ConfigError

if TYPE_CHECKING:
    from fidgpt.curves import Curve, Recorded


FLAGS = flags.FLAGS
_FEW = 5  # steps that a warning names, or runs that are listed

app.define_path(
    "out",
    "The file to write: .pdf, .png or .svg; defaults to curves.png.",
    allow_override=True,  # one process may hold several commands
)
flags.DEFINE_multi_string(
    "metric",
    [],
    "Metrics to plot, a panel each; `*` matches anything. Repeatable. Defaults to the usual ones.",
)
flags.DEFINE_enum("over", "step", ["step", "tokens", "time"], "Quantity on the horizontal axis.")
flags.DEFINE_float(
    "smooth",
    None,
    "Smoothing window in steps; 0 for none. Defaults to 1% of the run.",
    0.0,
)
flags.DEFINE_integer("first_step", 0, "Omit what comes before this step.", 0)
flags.DEFINE_bool("log_x", False, "A logarithmic horizontal axis.")
flags.DEFINE_bool("log_y", False, "Logarithmic vertical axes.")
flags.DEFINE_string("title", "", "Title above the curves.")


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Draw the runs' metrics into the file.

    Raises:
      ConfigError: no run was named, the file is of no known kind.
      DataError: Matplotlib is missing.
      RunError: a run or a metric is missing, or the file cannot be written.
    """
    # Late: --help loads neither torch nor Matplotlib.
    from fidgpt import curves
    from fidgpt.data.errors import import_extra

    out = Path(FLAGS.out or "curves.png")
    if not arguments:
        raise ConfigError("name the runs to draw: python -m fidgpt.plot runs/NAME runs/OTHER")
    if out.suffix.removeprefix(".") not in curves.KINDS:
        raise ConfigError(
            f"--out={out} must end in one of: {', '.join(f'.{k}' for k in curves.KINDS)}."
        )
    import_extra("matplotlib", extra="plot", purpose="a plot")
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    runs = curves.read_runs([Path(argument) for argument in arguments])
    panels = {metric: _curves(runs, metric) for metric in curves.chosen_metrics(runs, FLAGS.metric)}
    look: dict[str, Any] = {name: FLAGS[name].value for name in ("over", "log_x", "log_y", "title")}
    curves.save(curves.draw(panels, **look), out)
    drawn = {curve.run for panel in panels.values() for curve in panel}
    names = [run.name for run in runs if run.name in drawn]
    shown = ", ".join(names) if len(names) <= _FEW else f"{len(names)} runs"
    print(f"{out} shows {', '.join(panels)} of {shown}.")


def _curves(runs: "Sequence[Recorded]", metric: str) -> "list[Curve]":
    """Return the runs' curves of a metric, with a warning for each run that has none.

    Raises:
      RunError: no run has a point of it.
    """
    from fidgpt.curves import curve_of
    from fidgpt.train import RunError

    what = f"value of {metric}{' above 0, as --log_y needs' if FLAGS.log_y else ''}"
    recorded: list[Curve] = []
    for run in runs:
        curve = curve_of(
            run, metric, over=FLAGS.over, smooth=FLAGS.smooth, first_step=FLAGS.first_step
        )
        if curve is None or (FLAGS.log_y and max(curve.y) <= 0):
            print(f"warning: {run.name} has no {what}.", file=sys.stderr)
            continue
        recorded.append(curve)
        if steps := curve.left_out:
            few = ", ".join(map(str, steps[:_FEW])) + (", ..." if len(steps) > _FEW else "")
            print(
                f"warning: {run.name} has numbers of {metric} that are omitted, as they are NaN, "
                f"infinite or too large: at step{'s' * (len(steps) > 1)} {few}.",
                file=sys.stderr,
            )
    if not recorded:
        raise RunError(f"no run has a {what} to plot; see --first_step.")
    return recorded
