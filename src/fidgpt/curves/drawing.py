"""Panels of curves, one for each metric, drawn with Matplotlib and without a display."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fidgpt.curves.series import Curve
from fidgpt.train.summary_text import magnitude

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Told apart by people of any colour vision (Petroff 2021, ten colours).
_COLOURS = [
    "#3f90da", "#bd1f01", "#ffa90e", "#832db6", "#94a4a2",
    "#a96b59", "#e76300", "#717581", "#b9ac70", "#92dadd",
]  # fmt: skip
_GREY, _FAINT = "#555555", "#dddddd"
_UNITS = {"loss": "nats per token", "utilisation": "share of the peak", "memory": "bytes"}
_LARGE = {"tokens", "tokens_per_second", "memory"}
_HOUR, _MINUTE = 3600.0, 60.0
_WIDTH, _HEIGHT = 5.6, 3.5  # inches of a panel
_LETTERS = 11  # of the legend in an inch
_DECADES = 3.5  # up to which a logarithmic axis has three numbers in each
_APART = 0.055  # of a panel's height, between two numbers at its edge


@dataclass(frozen=True)
class Look:
    """How panels are drawn.

    Attributes:
      over: what lies on the horizontal axis.
      log_x: whether that axis is logarithmic.
      log_y: whether the vertical ones are.
      title: above everything; empty for none.
    """

    over: str
    log_x: bool = False
    log_y: bool = False
    title: str = ""


def draw(panels: Mapping[str, Sequence[Curve]], *, look: Look) -> "Figure":
    """A figure with a panel for each metric; a run has one colour in all of them."""
    from matplotlib.figure import Figure  # late: an extra
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    runs = list(dict.fromkeys(curve.run for curves in panels.values() for curve in curves))
    colours = _colours(runs)
    columns = min(len(panels), 1 if len(panels) == 1 else 2 if len(panels) <= 4 else 3)
    rows = -(-len(panels) // columns)
    wide = 1.5 if columns == 1 else 1.0
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    figure = Figure(figsize=(_WIDTH * columns * wide, _HEIGHT * rows * wide), layout=layout)
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for place, (metric, curves) in zip(places, panels.items(), strict=False):
        _panel(place, metric, curves, colours=colours, look=look)
    for place in places[len(panels) :]:
        place.set_axis_off()
    _head(figure, places[0], runs, look.title)
    return figure


def _colours(runs: Sequence[str]) -> dict[str, Any]:
    from matplotlib import colormaps

    if len(runs) <= len(_COLOURS):
        return dict(zip(runs, _COLOURS, strict=False))
    scale = colormaps["turbo"]  # neighbours look alike, as points of a sweep are
    return {run: scale(0.05 + 0.9 * at / (len(runs) - 1)) for at, run in enumerate(runs)}


def _panel(
    place: "Axes",
    metric: str,
    curves: Sequence[Curve],
    *,
    colours: Mapping[str, Any],
    look: Look,
) -> None:
    unit, size = _time_unit(curves) if look.over == "time" else (look.over, 1.0)
    for curve in curves:
        x, colour = [value / size for value in curve.x], colours[curve.run]
        if list(curve.smooth) != list(curve.y):
            place.plot(x, curve.y, color=colour, alpha=0.18, linewidth=0.7)
        marker = "o" if curve.is_sparse or len(x) == 1 else ""
        place.plot(
            x, curve.smooth, color=colour, linewidth=1.7, marker=marker, markersize=3.5,
            label=curve.run,
        )  # fmt: skip
    _dress(place, metric, unit, look)
    _last_values(place, curves, colours, log=look.log_y)


def _dress(place: "Axes", metric: str, unit: str, look: Look) -> None:
    from matplotlib.ticker import EngFormatter

    name, _, kind = metric.rpartition("/")
    known = _UNITS.get(kind, "")
    words = f"{name} {kind}".strip().replace("_", " ")
    place.set_title(words, loc="left", fontsize=11, fontweight="bold")
    if known:
        place.set_title(known, loc="right", fontsize=9, color=_GREY)
    large = EngFormatter(sep="")
    place.autoscale_view()
    if look.log_x:
        place.set_xscale("log")
        _plain_ticks(place.xaxis)
    elif look.over != "time":
        place.xaxis.set_major_formatter(large)
    if look.log_y:
        place.set_yscale("log", nonpositive="mask")
        _plain_ticks(place.yaxis)
    elif kind in _LARGE:
        place.yaxis.set_major_formatter(large)
    place.set_xlabel(unit, fontsize=9, color=_GREY)
    place.grid(color=_FAINT, linewidth=0.6)
    place.set_axisbelow(True)
    place.spines[["top", "right"]].set_visible(False)
    place.spines[["left", "bottom"]].set_color(_GREY)
    place.tick_params(colors=_GREY, labelsize=9)


def _plain_ticks(axis: "Axis") -> None:
    """Numbers at 1, 2 and 5 of every decade, where these are few, and no powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1.0, 2.0, 5.0) if high < 10**_DECADES * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axis.set_minor_locator(LogLocator(subs="all"))
    axis.set_minor_formatter(NullFormatter())


def _last_values(
    place: "Axes", curves: Sequence[Curve], colours: Mapping[str, Any], *, log: bool
) -> None:
    """The last value of each curve at the right edge, moved apart where they would overlap."""
    place.autoscale_view()  # or the limits are found after this, and the heights are wrong
    heights = {
        curve.run: place.transLimits.transform(
            place.transScale.transform((curve.x[-1], curve.smooth[-1]))
        )[1]
        for curve in curves
        if not log or curve.smooth[-1] > 0
    }
    at = _spread(sorted(heights.items(), key=lambda item: item[1]))
    for curve in curves:
        if curve.run in at and len(curves) <= len(_COLOURS):
            place.annotate(
                short_number(curve.smooth[-1]), (1.01, at[curve.run]), xycoords="axes fraction",
                color=colours[curve.run], fontsize=8.5, va="center", annotation_clip=False,
            )  # fmt: skip


def _spread(heights: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Heights from the lowest on, moved apart where they are too near, and none above the top."""
    at: dict[str, float] = {}
    lowest = -math.inf
    for name, height in heights:
        lowest = at[name] = max(height, lowest + _APART)
    highest = 1.0 + _APART
    for name in reversed(at):
        highest = at[name] = min(at[name], highest - _APART)
    return at


def short_number(value: float) -> str:
    """Four digits, or three and a letter: `3.157`, `381k`, `2.5e-05`."""
    if abs(value) >= 10_000:
        return magnitude(value, ["", "k", "M", "G", "T"]).replace(" ", "")
    return f"{value:.4g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.3g}"


def _time_unit(curves: Sequence[Curve]) -> tuple[str, float]:
    longest = max(curve.x[-1] for curve in curves)
    if longest >= 2 * _HOUR:
        return "hours in steps", _HOUR
    return ("minutes in steps", _MINUTE) if longest >= 2 * _MINUTE else ("seconds in steps", 1.0)


def _head(figure: "Figure", place: "Axes", runs: Sequence[str], title: str) -> None:
    """The title, and which colour is which run."""
    handles = dict(zip(*reversed(place.get_legend_handles_labels()), strict=True))
    known = [run for run in runs if run in handles]
    width = int(figure.get_figwidth() * _LETTERS) // (max(map(len, known)) + 6)
    figure.legend(
        [handles[run] for run in known],
        known,
        loc="outside upper left",
        ncols=max(1, min(len(known), width)),
        title=title or None,
        title_fontproperties={"weight": "bold", "size": 13},
        alignment="left",
        frameon=False,
        fontsize=9.5,
    )
