"""One metric of one run as a curve: its points, over steps, tokens or time, and smoothed."""

import bisect
import difflib
import fnmatch
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fidgpt.curves.recorded import Recorded
from fidgpt.train import RunError

AXES = ("step", "tokens", "time")
_USUAL = ("loss", "validation/loss", "learning_rate", "grad_norm", "tokens_per_second")
_EARLY = 0.1  # of the steps so far are averaged at most, as a loss falls fast at first
_LARGEST = 1e100  # Matplotlib multiplies the ends of an axis, which must not overflow
_SPARSE = 0.5  # of the rows; what fewer have, as evaluations, is shown point by point


@dataclass(frozen=True)
class Curve:
    """Points of a metric.

    Attributes:
      run: name of the run.
      x: steps, tokens or seconds.
      y: the metric as it was measured, finite and not too large for a drawing.
      smooth: the same, smoothed.
      is_sparse: whether it was measured now and then only.
      left_out: steps whose number is none, infinite, or too large for a drawing.
    """

    run: str
    x: Sequence[float]
    y: Sequence[float]
    smooth: Sequence[float]
    is_sparse: bool
    left_out: Sequence[int] = ()


def chosen_metrics(runs: Sequence[Recorded], asked: Sequence[str]) -> list[str]:
    """The metrics that names or patterns mean, in the order of asking; the usual ones of none.

    Raises:
      RunError: no run has what is asked for.
    """
    known = list(dict.fromkeys(metric for run in runs for metric in run.metrics))
    if not asked:
        return [name for name in _USUAL if name in known] or known[:4]
    chosen: dict[str, None] = {}
    for name in asked:
        found = [name] if name in known else fnmatch.filter(known, name)
        if not found:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise RunError(
                f"no run has the metric {name}.{hint} There are: {', '.join(sorted(known))}."
            )
        chosen |= dict.fromkeys(found)
    return list(chosen)


def curve_of(
    run: Recorded, metric: str, *, over: str, smooth: float | None = None, first_step: int = 0
) -> Curve | None:
    """A metric of a run; None where it has no point that could be drawn.

    Args:
      run: whose.
      metric: its name.
      over: one of AXES.
      smooth: steps over which it is averaged, weights falling by 1/e in so many; 0 leaves it, and
        None takes a hundredth of the run.
      first_step: what comes before it is left out.
    """
    rows = [row for row in run.rows if _can_be_drawn(row.get(metric))]
    if not rows or rows[-1]["step"] < first_step:
        return None
    is_sparse = len(rows) < _SPARSE * len(run.rows)
    steps = [row["step"] for row in rows]
    y = [float(row[metric]) for row in rows]
    if smooth is None:
        smooth = 0.0 if is_sparse or metric == "learning_rate" else len(run.rows) / 100
    places = dict(zip((row["step"] for row in run.rows), _places(run, over), strict=True))
    x, smoothed = [places[step] for step in steps], _smoothed(steps, y, smooth)
    at = bisect.bisect_left(steps, first_step)
    left_out = [
        row["step"]
        for row in run.rows
        if row["step"] >= first_step
        and isinstance(value := row.get(metric), int | float)
        and not _can_be_drawn(value)
    ]
    return Curve(run.name, x[at:], y[at:], smoothed[at:], is_sparse, left_out)


def _can_be_drawn(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= _LARGEST


def _places(run: Recorded, over: str) -> list[float]:
    """Where each row lies on an axis.

    Raises:
      RunError: the rows do not say.
    """
    if over == "step":
        return [row["step"] for row in run.rows]
    needs = {"tokens": ["tokens"], "time": ["tokens", "tokens_per_second"]}[over]
    missing = [name for name in needs if not all(_can_be_drawn(row.get(name)) for row in run.rows)]
    if missing:
        raise RunError(f"{run.name} cannot be drawn over {over}: not every row has {missing[0]}.")
    if over == "tokens":
        return [row["tokens"] for row in run.rows]
    before = [0, *(row["tokens"] for row in run.rows[:-1])]
    return list(
        itertools.accumulate(
            (row["tokens"] - old) / max(row["tokens_per_second"], 1e-9)
            for row, old in zip(run.rows, before, strict=True)
        )
    )


def _smoothed(steps: Sequence[int], y: Sequence[float], span: float) -> list[float]:
    """An exponential average that owes nothing to where it begins (as Adam corrects its own)."""
    if span <= 0:
        return list(y)
    total = weight = 0.0
    smooth = []
    for step, gap, value in zip(steps, _gaps(steps), y, strict=True):
        keep = math.exp(-gap / min(span, _EARLY * step))
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        smooth.append(total / weight)
    return smooth


def _gaps(steps: Sequence[int]) -> list[int]:
    return [1, *(new - old for old, new in itertools.pairwise(steps))]
