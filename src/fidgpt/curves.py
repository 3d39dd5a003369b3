"""Curves of the metrics of runs: read, smoothed, and drawn by Matplotlib into a file."""

import bisect
import fnmatch
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fidgpt.files import atomic_path
from fidgpt.graph import suggest
from fidgpt.sweep import results
from fidgpt.train import RunError, run_directory
from fidgpt.train.trackers.trackers import Row, read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FILE = "metrics.jsonl"
AXES = {"step": (), "tokens": ("tokens",), "time": ("tokens", "tokens_per_second")}
_USUAL = ("loss", "validation/loss", "learning_rate", "grad_norm", "tokens_per_second")
_EARLY = 0.1  # largest share of the steps so far to average, as a loss falls fast at first
_LARGEST = 1e100  # Matplotlib multiplies the ends of an axis, which must not overflow
_SPARSE = 0.5  # of the rows; a metric that fewer have is shown point by point
KINDS = ("pdf", "png", "svg")
_STYLE: Any = {
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.4},
    **{"text.parse_math": False, "legend.frameon": False, "svg.hashsalt": "fidgpt"},
}
_WIDTH, _HEIGHT = 6.5, 4.5  # inches of a panel
_MOST_COLORS = 10  # that any color vision distinguishes
_MOST_NAMED = 24  # runs in a legend
_LINE = 0.2  # inches, of the legend


@dataclass(frozen=True)
class Recorded:
    """The metrics of a run.

    Attributes:
      name: the shortest end of its path that no other run has.
      rows: its steps in order, at least one.
    """

    name: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Curve:
    """Points of a metric.

    Attributes:
      run: name of the run.
      x: steps, tokens or seconds.
      y: the metric as measured, finite and not too large for a drawing.
      smooth: the same, smoothed.
      is_sparse: whether it was measured only now and then.
      left_out: steps with a value that is NaN, infinite, or too large for a drawing.
    """

    run: str
    x: Sequence[float]
    y: Sequence[float]
    smooth: Sequence[float]
    is_sparse: bool
    left_out: Sequence[int] = ()


def read_runs(paths: Sequence[Path]) -> list[Recorded]:
    """Read the metrics of run directories; one without a step is left out, with a warning.

    Args:
      paths: the directories; the directory of a sweep stands for all its points that have begun. A
        point is named as in its sweep.

    Raises:
      RunError: a run is named twice or cannot be read, or none has done a step.
    """
    paths = [run for path in paths for run in _points_of(path) or [path]]
    whole = [path.resolve() for path in paths]
    if len({*whole}) < len(whole):
        raise RunError(f"{', '.join(map(str, paths))}: name each run once.")
    names = _names_of(whole)
    recorded: list[Recorded] = []
    empty: list[str] = []
    for path, full in zip(paths, whole, strict=True):
        try:
            rows = read_rows(path / FILE)
        except OSError as error:
            inside = sorted(str(file.parent) for file in path.glob(f"*/{FILE}"))
            hint = f" Runs are inside: {', '.join(inside[:5])}." if inside else ""
            reason = error.strerror if path.exists() else "no such directory"
            raise RunError(
                f"{path} holds no run: {FILE} cannot be read ({reason}).{hint}"
            ) from None
        if not rows:
            empty.append(f"{path} has nothing to draw: {path / FILE} has no row of a step yet.")
            continue
        recorded.append(Recorded(names[full], rows))
    if not recorded:
        raise RunError("\n".join(empty))
    for line in empty:
        run_directory.print_stderr(f"warning: {line}")
    return recorded


def _points_of(directory: Path) -> list[Path]:
    """Return the run directories of the points of a sweep that have begun, if it is a sweep."""
    rows = results.read_table(directory) if directory.is_dir() else []
    paths = (directory / row["directory"] for row in rows)
    return [path for path in paths if (path / FILE).exists()]


def _names_of(whole: Sequence[Path]) -> dict[Path, str]:
    """Return the shortest end of each path that no other one has, where points have their names."""
    points = {
        parent / row["directory"]: row["name"]
        for parent in {path.parent for path in whole}
        for row in results.read_table(parent)
    }
    parts = [(*path.parts[:-1], points.get(path, path.name)) for path in whole]
    ends = (["/".join(names[-i:]) for names in parts] for i in range(1, max(map(len, parts)) + 1))
    unique = next((names for names in ends if len({*names}) == len(names)), map(str, whole))
    return dict(zip(whole, unique, strict=True))


def chosen_metrics(runs: Sequence[Recorded], patterns: Sequence[str]) -> list[str]:
    """Return the metrics that names or patterns match, in their order; by default the usual ones.

    Raises:
      RunError: no run has a metric of that name.
    """
    rows = itertools.chain(*(run.rows for run in runs))
    numbers = (key for row in rows for key, x in row.items() if isinstance(x, int | float))
    known = [name for name in dict.fromkeys(numbers) if name != "step"]
    if not patterns:
        return [name for name in _USUAL if name in known] or known[:4]
    chosen: dict[str, None] = {}
    for name in patterns:
        matching = [name] if name in known else fnmatch.filter(known, name)
        if not matching:
            raise RunError(f"no run has the metric {name}. {suggest(name, known)}")
        chosen |= dict.fromkeys(matching)
    return list(chosen)


def curve_of(
    run: Recorded, metric: str, *, over: str, smooth: float | None = None, first_step: int = 0
) -> Curve | None:
    """Return a metric of a run; None if it has no point to draw.

    Args:
      run: the run.
      metric: its name.
      over: one of AXES.
      smooth: steps over which it is averaged, with weights falling by 1/e; 0 for none, and None
        for a hundredth of the run.
      first_step: the first step to draw.

    Raises:
      RunError: the rows lack what places them on the axis.
    """
    x_of_row = _places(run, over)
    pairs = [(row, x) for row, x in zip(run.rows, x_of_row, strict=True) if metric in row]
    fine = [(row, x) for row, x in pairs if _can_be_drawn(row[metric])]
    steps = [row["step"] for row, _ in fine]
    if not steps or steps[-1] < first_step:
        return None
    y, is_sparse = [float(row[metric]) for row, _ in fine], len(fine) < _SPARSE * len(run.rows)
    if smooth is None:
        smooth = 0.0 if is_sparse or metric == "learning_rate" else len(run.rows) / 100
    at, smoothed = bisect.bisect_left(steps, first_step), _smoothed(steps, y, smooth)
    bad = [row["step"] for row, _ in pairs if not _can_be_drawn(row[metric])]
    left_out = [step for step in bad if step >= first_step]
    x = [place for _, place in fine]
    return Curve(run.name, x[at:], y[at:], smoothed[at:], is_sparse, left_out)


def _can_be_drawn(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= _LARGEST


def _places(run: Recorded, over: str) -> list[float]:
    if over == "step":
        return [row["step"] for row in run.rows]
    for name in AXES[over]:
        if not all(_can_be_drawn(row.get(name)) for row in run.rows):
            raise RunError(f"{run.name} cannot be drawn over {over}: not every row has {name}.")
    tokens = [row["tokens"] for row in run.rows]
    if over == "tokens":
        return tokens
    rates = (max(row["tokens_per_second"], 1e-9) for row in run.rows)
    gaps = (new - old for old, new in itertools.pairwise([0, *tokens]))
    return list(itertools.accumulate(gap / rate for gap, rate in zip(gaps, rates, strict=True)))


def _smoothed(steps: Sequence[int], y: Sequence[float], span: float) -> list[float]:
    """Return an exponential average without bias towards its start, as Adam corrects its own."""
    if span <= 0:
        return list(y)
    total = weight = 0.0
    smooth = []
    for before, step, value in zip([steps[0] - 1, *steps], steps, y, strict=False):
        # A file may hold steps in any order, and of any size.
        keep = math.exp(-abs(step - before) / max(1e-9, min(span, _EARLY * step)))
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        smooth.append(total / weight if weight else value)
    return smooth


def draw(
    panels: Mapping[str, Sequence[Curve]],
    *,
    over: str,
    log_x: bool = False,
    log_y: bool = False,
    title: str = "",
) -> "Figure":
    """Return a figure with a panel for each metric; a run has one color in all of them.

    Args:
      panels: the curves of each metric.
      over: what lies on the horizontal axis.
      log_x: whether that axis is logarithmic.
      log_y: whether the vertical axes are.
      title: above everything; empty for none.
    """
    from matplotlib import colormaps, rc_context, style  # late: an extra
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    runs = list(dict.fromkeys(curve.run for curves in panels.values() for curve in curves))
    colors: Any = style.library["petroff10"]["axes.prop_cycle"].by_key()["color"]
    if len(runs) > _MOST_COLORS:  # neighbors look alike, as points of a sweep are
        colors = [colormaps["turbo"](i / (len(runs) - 1)) for i in range(len(runs))]
    color_of = dict(zip(runs, colors, strict=False))
    columns = 1 if len(panels) == 1 else 2 if len(panels) <= 4 else 3
    rows = -(-len(panels) // columns)
    with rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows), layout="constrained")
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for place, (metric, curves) in zip(places, panels.items(), strict=False):
            _panel(place, metric, curves, color_of, over)
            for name in "x" * log_x + "y" * log_y:
                getattr(place, f"set_{name}scale")("log", nonpositive="mask")
                axis = getattr(place, f"{name}axis")
                axis.set_major_formatter(LogFormatter(minor_thresholds=(2, 0.6)))
                axis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.6)))
        for place in places[len(panels) :]:
            place.set_axis_off()
        lines, labels = (shown[:_MOST_NAMED] for shown in places[0].get_legend_handles_labels())
        title = title or (f"the first {_MOST_NAMED} of {len(runs)}" * (len(runs) > _MOST_NAMED))
        # Of a size of its own, or a legend of many runs would leave no room for panels.
        figure.set_figheight(figure.get_figheight() + _LINE * -(-len(labels) // columns))
        figure.legend(lines, labels, loc="outside upper left", ncols=columns, title=title)
    return figure


def _panel(
    place: "Axes", metric: str, curves: Sequence[Curve], colors: Mapping[str, Any], over: str
) -> None:
    unit, size = over, 1.0
    if over == "time":
        is_long = max(curve.x[-1] for curve in curves) >= 2 * 3600
        unit, size = ("hours in steps", 3600.0) if is_long else ("seconds in steps", 1.0)
    for curve in curves:
        x, color = [value / size for value in curve.x], colors[curve.run]
        if list(curve.smooth) != list(curve.y) and len(curves) <= _MOST_NAMED:
            place.plot(x, curve.y, color=color, alpha=0.18, linewidth=0.7)
        marker = "o" if curve.is_sparse or len(x) == 1 else ""
        place.plot(x, curve.smooth, label=curve.run, color=color, marker=marker, markersize=3)
    place.set(title=metric.replace("/", " ").replace("_", " "), xlabel=unit)


def save(figure: "Figure", path: Path) -> None:
    """Write the kind of file that the name ends in, atomically; the same bytes for equal curves.

    Raises:
      OSError: it cannot be written; what was there before still is.
    """
    from matplotlib import rc_context

    kind = path.suffix[1:]
    with atomic_path(path) as draft, rc_context(_STYLE):
        undated = {"pdf": {"CreationDate": None}, "png": {}}.get(kind, {"Date": None})
        figure.savefig(draft, format=kind, dpi=150, metadata=undated)
