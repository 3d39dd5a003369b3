"""The metrics of runs as curves: read, placed over steps, tokens or time, and smoothed."""

import bisect
import fnmatch
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fidgpt.graph import suggest
from fidgpt.train import RunError
from fidgpt.train.run_directory import print_stderr
from fidgpt.train.trackers.trackers import Row, read_rows

FILE = "metrics.jsonl"
AXES = {"step": (), "tokens": ("tokens",), "time": ("tokens", "tokens_per_second")}
_USUAL = ("loss", "validation/loss", "learning_rate", "grad_norm", "tokens_per_second")
_EARLY = 0.1  # largest share of the steps so far to average, as a loss falls fast at first
_LARGEST = 1e100  # Matplotlib multiplies the ends of an axis, which must not overflow
_SPARSE = 0.5  # of the rows; a metric that fewer have is shown point by point


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

    Raises:
      RunError: a run is named twice or cannot be read, or none has done a step.
    """
    whole = [path.resolve() for path in paths]
    if len({*whole}) < len(whole):
        raise RunError(f"{', '.join(map(str, paths))}: name each run once.")
    found: list[Recorded] = []
    empty: list[str] = []
    for path, full in zip(paths, whole, strict=True):
        try:
            rows = read_rows(path / FILE)
        except OSError as error:
            inside = sorted(str(one.parent) for one in path.glob(f"*/{FILE}"))
            hint = f" Runs are inside: {', '.join(inside[:5])}." if inside else ""
            reason = error.strerror if path.exists() else "no such directory"
            raise RunError(
                f"{path} holds no run: {FILE} cannot be read ({reason}).{hint}"
            ) from None
        if not rows:
            empty.append(f"{path} has nothing to draw: {path / FILE} has no row of a step yet.")
            continue
        ends = (["/".join(one.parts[-i:]) for one in whole] for i in range(1, len(full.parts) + 1))
        unique = next((names for names in ends if len({*names}) == len(names)), map(str, whole))
        found.append(Recorded([*unique][whole.index(full)], rows))
    if not found:
        raise RunError("\n".join(empty))
    for line in empty:
        print_stderr(f"warning: {line}")
    return found


def chosen_metrics(runs: Sequence[Recorded], patterns: Sequence[str]) -> list[str]:
    """Return the metrics that names or patterns match, in their order; by default the usual ones.

    Raises:
      RunError: no run has a metric of that name.
    """
    rows = itertools.chain(*(run.rows for run in runs))
    numbers = (key for row in rows for key, one in row.items() if isinstance(one, int | float))
    known = [name for name in dict.fromkeys(numbers) if name != "step"]
    if not patterns:
        return [name for name in _USUAL if name in known] or known[:4]
    chosen: dict[str, None] = {}
    for name in patterns:
        found = [name] if name in known else fnmatch.filter(known, name)
        if not found:
            raise RunError(f"no run has the metric {name}. {suggest(name, known)}")
        chosen |= dict.fromkeys(found)
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
        keep = math.exp((before - step) / min(span, _EARLY * step))
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        smooth.append(total / weight)
    return smooth
