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
from fidgpt.train import RunError
from fidgpt.train.run_directory import print_stderr
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
# Ten colors that are distinct for any color vision (Petroff 2021).
_COLOURS = [
    "#3f90da", "#bd1f01", "#ffa90e", "#832db6", "#94a4a2",
    "#a96b59", "#e76300", "#717581", "#b9ac70", "#92dadd",
]  # fmt: skip
_GREY = "#555555"
_STYLE: Any = {
    **dict.fromkeys(("axes.labelsize", "xtick.labelsize", "ytick.labelsize"), 9),
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _GREY),
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 11},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#dddddd", "grid.linewidth": 0.6},
    **{
        "text.parse_math": False,
        "legend.frameon": False,
        "legend.fontsize": 9.5,
        "svg.hashsalt": "fidgpt",
    },
}
_UNITS = {"loss": "nats per token", "utilisation": "share of the peak", "memory": "bytes"}
_LARGE = {"tokens", "tokens_per_second", "memory"}
_WIDTH, _HEIGHT = 5.6, 3.5  # inches of a panel
_LETTERS = 11  # of the legend in an inch
_MOST_NAMED = 24  # runs in a legend
_LINE = 0.2  # inches, of the legend
_DECADES = 3.5  # up to which a logarithmic axis has three numbers in each


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
            if (path.parent / results.TABLE).exists():
                hint = f" Name {path.parent} for all points of the sweep."
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
        print_stderr(f"warning: {line}")
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
    from matplotlib import colormaps, rc_context  # late: an extra
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    runs = list(dict.fromkeys(curve.run for curves in panels.values() for curve in curves))
    colors: list[Any] = _COLOURS[: len(runs)]
    if len(runs) > len(_COLOURS):  # neighbors look alike, as points of a sweep are
        colors = [colormaps["turbo"](0.05 + 0.9 * i / (len(runs) - 1)) for i in range(len(runs))]
    columns = min(len(panels), 1 if len(panels) == 1 else 2 if len(panels) <= 4 else 3)
    rows, scale = -(-len(panels) // columns), 1.5 if columns == 1 else 1.0
    size = _WIDTH * columns * scale, _HEIGHT * rows * scale
    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for place, (metric, curves) in zip(places, panels.items(), strict=False):
            _panel(place, metric, curves, dict(zip(runs, colors, strict=True)), over)
            for name in "x" * log_x + "y" * log_y:
                _make_log(place, name)
        for place in places[len(panels) :]:
            place.set_axis_off()
        handles, labels = _legend(places[0])
        width = int(figure.get_figwidth() * _LETTERS) // (max(map(len, labels)) + 6)
        count = max(1, min(len(labels), width))
        figure.set_figheight(figure.get_figheight() + _LINE * -(-len(labels) // count))
        figure.legend(
            handles,
            labels,
            loc="outside upper left",
            ncols=count,
            title=title or None,
            title_fontproperties={"weight": "bold", "size": 13},
            alignment="left",
        )
    return figure


def _legend(place: "Axes") -> tuple[list[Any], list[str]]:
    """Return lines and names for a legend; of many, the first ones and the count of the others."""
    from matplotlib.lines import Line2D

    lines, labels = place.get_legend_handles_labels()
    if (rest := len(labels) - _MOST_NAMED) > 0:
        lines = [*lines[:_MOST_NAMED], Line2D([], [], linestyle="none")]
        labels = [*labels[:_MOST_NAMED], f"and {rest} more"]
    return lines, labels


def _panel(
    place: "Axes", metric: str, curves: Sequence[Curve], colors: Mapping[str, Any], over: str
) -> None:
    from matplotlib.ticker import EngFormatter

    unit, size = over, 1.0
    if over == "time":
        longest = max(curve.x[-1] for curve in curves)
        units = {"hours": 3600.0, "minutes": 60.0, "seconds": 0.0}
        unit, size = next((f"{k} in steps", v or 1.0) for k, v in units.items() if longest >= 2 * v)
    for curve in curves:
        x, color = [value / size for value in curve.x], colors[curve.run]
        look: Any = {"color": color, "linewidth": 0.8 if len(curves) > _MOST_NAMED else 1.7}
        if list(curve.smooth) != list(curve.y) and len(curves) <= _MOST_NAMED:
            place.plot(x, curve.y, color=color, alpha=0.18, linewidth=0.7)
        if curve.is_sparse or len(x) == 1:
            look |= {"marker": "o", "markersize": 2 * look["linewidth"]}
        place.plot(x, curve.smooth, label=curve.run, **look)
    kind = metric.rpartition("/")[2]
    place.set_title(metric.replace("/", " ").replace("_", " "), loc="left", fontweight="bold")
    place.set_title(_UNITS.get(kind, ""), loc="right", fontsize=9, color=_GREY)
    place.set_xlabel(unit)
    place.autoscale_view()
    for axis, is_large in ((place.xaxis, over != "time"), (place.yaxis, kind in _LARGE)):
        if is_large:
            axis.set_major_formatter(EngFormatter(sep=""))


def _make_log(place: "Axes", name: str) -> None:
    """Label 1, 2 and 5 of every decade if there are few, and no powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(place, f"set_{name}scale")("log", nonpositive="mask")
    axis = getattr(place, f"{name}axis")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 10**_DECADES * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axis.set_minor_locator(LogLocator(subs="all"))
    axis.set_minor_formatter(NullFormatter())


def save(figure: "Figure", path: Path) -> None:
    """Write the kind of file that the name ends in, atomically; the same bytes for equal curves.

    Raises:
      OSError: it cannot be written; what was there before still is.
    """
    from matplotlib import rc_context
    from matplotlib.text import Text

    kind = path.suffix[1:]
    with atomic_path(path) as draft, rc_context(_STYLE):
        undated = {"pdf": {"CreationDate": None}, "png": {}}.get(kind, {"Date": None})
        for text in figure.findobj(Text):  # XML has no control characters, not even escaped
            letters = (c if c.isprintable() or c == "\n" else "�" for c in text.get_text())
            text.set_text("".join(letters))
        figure.savefig(draft, format=kind, dpi=150, metadata=undated)
