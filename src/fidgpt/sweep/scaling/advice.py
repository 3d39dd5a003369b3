"""A scaling law as text and as a drawing, and what to train for a budget."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fidgpt.data.errors import import_extra
from fidgpt.graph import ConfigError
from fidgpt.sweep.scaling.law import Law, Parabola, Run

_UNITS = {"h": 3600.0, "hours": 3600.0, "days": 86400.0, "d": 86400.0}
_BUDGET = re.compile(r"(\$)?([\d.]+(?:[eE][+-]?\d+)?)\s*([a-zA-Z]*)")
_LEAST, _MOST = 1e-3, 1e40  # beyond which no budget is meant
_WIDTHS = ("HiddenDim", "hidden_dim")


def budget_amount(text: str, *, size: int | None, price: float | None) -> tuple[float, bool]:
    """Return what a budget is, and whether that is seconds: `1e20`, `500h` of hardware, or `$2000`.

    Args:
      text: as it was given.
      size: devices of the hardware; None if there is none.
      price: of a device for an hour.

    Raises:
      ConfigError: it is none, or needs hardware or a price.
    """
    match = _BUDGET.fullmatch(text.strip())
    unit = match[3].lower() if match else ""
    known = unit in ("", "flops", *_UNITS)
    if match is None or not known or not _LEAST < float(match[2]) < _MOST:
        raise ConfigError(
            f"--budget={text} must be operations such as 1e20, hours on --hardware such as 500h, "
            "or money such as $2000 with --price for a device and hour."
        )
    number = float(match[2])
    if not match[1] and unit in ("", "flops"):
        return number, False
    if size is None or (match[1] and not price):
        needed = "--hardware, such as h100x8" + (", and --price" if match[1] else "")
        raise ConfigError(f"--budget={text} needs {needed}, to know what it buys.")
    return (3600 * number / (price or 1.0) / size if match[1] else number * _UNITS[unit]), True


def runs_of(rows: Sequence[Mapping[str, Any]], costs: Mapping[str, Any], metric: str) -> list[Run]:
    """Return the finished runs of a sweep.

    Args:
      rows: of its results.
      costs: of its points, by their fingerprints.
      metric: the loss to fit.
    """
    runs = []
    for row in rows:
        loss, cost = row["metrics"].get(metric), costs.get(row["fingerprint"])
        is_number = isinstance(loss, int | float) and 0 < loss < math.inf
        if row["status"] == "finished" and cost is not None and is_number:
            runs.append(Run(cost.parameters, cost.tokens, cost.flops, float(loss)))
    return runs


def law_text(law: Law, curves: Sequence[Parabola], *, flops: float | None) -> str:
    """Return a law with intervals, the second method beside it, and what it cannot tell."""
    names = ("E", "A", "B", "a", "b")
    lines = [f"L(N, D) = E + A / N^a + B / D^b, of {len(law.runs)} runs; 80% of draws in brackets:"]
    for number, name in enumerate(names):
        low, high = law.interval(number)
        lines.append(f"  {name} = {law.constants[number]:.4g} [{low:.4g}, {high:.4g}]")
    for curve in curves:
        best = curve.best
        lowest = "no lowest loss" if best is None else f"lowest loss at {best:.3g} parameters"
        parameters = law.best(curve.flops)[0]
        lines.append(f"isoFLOP {curve.flops:.3g}: {lowest}; by the law {parameters:.3g}")
    if not curves:
        lines.append("isoFLOP parabolas need three sizes or more at one budget; there are none.")
    lines += law.unknowns(flops)
    if flops is not None:
        parameters, tokens = law.best(flops)
        low, high = law.interval_of_best(flops)
        lines += [
            "",
            f"For {flops:.3g} FLOPs: {parameters:.3g} parameters [{low:.3g}, {high:.3g}] on "
            f"{tokens:.3g} tokens, {tokens / parameters:.3g} for each; loss "
            f"{law.loss(parameters, tokens):.4g}.",
        ]
    return "\n".join(lines)


def width_for(rows: Sequence[Mapping[str, Any]], parameters: float) -> tuple[str, int] | None:
    """Return the axis of widths of a sweep, and the width that gives so many parameters.

    Parameters grow as a power of the width, which is fitted to the points.
    """
    pairs: dict[int, float] = {}
    axis = ""
    for row in rows:
        for name, value in row["values"].items():
            if any(word in name for word in _WIDTHS) and str(value).isdecimal():
                axis, pairs[int(value)] = name, row["parameters"]
    if len(pairs) < 2:
        return None
    (small, few), (large, many) = min(pairs.items()), max(pairs.items())
    power = math.log(many / few) / math.log(large / small)
    step = math.gcd(*pairs)
    width = large * (parameters / many) ** (1 / power)
    return axis, max(step, round(width / step) * step)


def advised_directives(
    rows: Sequence[Mapping[str, Any]], law: Law, flops: float, *, metric: str
) -> tuple[list[str], list[str]]:
    """Return the directives of the model to train for a budget, and remarks on them.

    They are the best run's directives, with the width and the tokens that the law names. The
    learning rate is the best run's too, as it is only known for the sizes of the sweep.
    """
    parameters, tokens = law.best(flops)
    finished = [row for row in rows if row["status"] == "finished" and metric in row["metrics"]]
    best = min(finished, key=lambda row: row["metrics"][metric])
    sized = width_for(rows, parameters)
    lengths = ("fiddler:train_for", "tag:TokensPerParameter")
    kept = [directive for directive in best["directives"] if not directive.startswith(lengths)]
    remarks: list[str] = []
    if sized is None:
        remarks.append(
            "No axis of the sweep is a width (tag:HiddenDim=...), so the command leaves the size "
            "as it is."
        )
    else:
        axis, width = sized
        name = axis if ":" in axis else f"tag:{axis}" if axis == "HiddenDim" else f"set:{axis}"
        kept = [directive for directive in kept if not directive.startswith(f"{name}=")]
        kept.append(f"{name}={width}")
    kept.append(f"fiddler:train_for(tokens={round(tokens)})")
    rate = next((v for n, v in best["values"].items() if "LearningRate" in n or n == "lr"), None)
    remarks.append(
        f"The learning rate is {rate}, the best of the sweep."
        if rate is not None
        else "The learning rate is that of the config: sweep tag:LearningRate to know a better one."
    )
    return kept, remarks


def draw(law: Law, curves: Sequence[Parabola], path: Path) -> None:
    """Draw the losses over size, with the parabolas and the law of each number of tokens.

    Raises:
      DataError: Matplotlib is not installed.
    """
    import_extra("matplotlib", extra="plot", purpose="the drawing")
    from matplotlib.figure import Figure  # late: an extra

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = [run.parameters for run in law.runs]
    span = [min(sizes) * (4 * max(sizes) / min(sizes)) ** (i / 60) / 2 for i in range(61)]
    for curve in curves:
        own = [run.parameters for run in curve.runs]
        square, slope, base = curve.coefficients
        xs = [min(own) * (max(own) / min(own)) ** (i / 40) for i in range(41)]
        ys = [square * math.log(x) ** 2 + slope * math.log(x) + base for x in xs]
        left.plot(xs, ys, label=f"{curve.flops:.2g} FLOPs")
        left.plot(own, [run.loss for run in curve.runs], "k.")
    left.set(xscale="log", xlabel="parameters", ylabel="loss", title="isoFLOP parabolas")
    if curves:
        left.legend()
    for tokens in sorted({run.tokens for run in law.runs})[:: max(1, len(law.runs) // 6)]:
        right.plot(span, [law.loss(size, tokens) for size in span], label=f"{tokens:.2g} tokens")
    right.plot(sizes, [run.loss for run in law.runs], "k.")
    right.set(xscale="log", xlabel="parameters", ylabel="loss", title="E + A / N^a + B / D^b")
    right.legend()
    figure.savefig(path)
