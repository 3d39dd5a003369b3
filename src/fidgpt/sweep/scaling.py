"""The scaling law of a sweep, as text and as a drawing, and what to train for a budget.

The law is L(N, D) = E + A / N^a + B / D^b, fitted to the losses of runs.

As in Hoffmann et al., 2022 (arXiv:2203.15556, approach 3 and appendix D.3): the Huber loss of the
difference of logarithms is minimized from a grid of starts. Intervals come from fits to runs drawn
with replacement (Besiroglu et al., 2024, arXiv:2404.10102). The second method fits isoFLOP
parabolas (approach 2).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fidgpt.data.errors import import_extra
from fidgpt.graph import ConfigError

_DELTA = 1e-3  # where the loss of a difference of logarithms becomes linear
_STARTS = [*product((0.0, 0.7, 1.4), (2.0, 6.0, 10.0, 16.0), (0.2, 0.5, 0.9))]
_DRAWS, _STEPS = 200, 150
_LEAST = 6  # runs: one more than the law has constants
_SAME = 1.15  # ratio of operations up to which runs have the same budget
_BEYOND = 10.0  # how far a law may go from the runs, as a ratio of tokens for each parameter
_MOST = 60.0  # of the logarithm of tokens for each parameter
_TEN_PERCENT = (0.1, 0.9)  # quantiles of an interval of 80%
_UNITS = {"h": 3600.0, "hours": 3600.0, "days": 86400.0, "d": 86400.0}
_BUDGET = re.compile(r"(\$)?([\d.]+(?:[eE][+-]?\d+)?)\s*([a-zA-Z]*)")
_LEAST_BUDGET, _MOST_BUDGET = 1e-9, 1e40  # beyond which no budget is meant
_WIDTHS = ("HiddenDim", "hidden_dim")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
      parameters: of the model.
      tokens: that it was trained on.
      flops: of the run.
      loss: at its end, in nats.
    """

    parameters: float
    tokens: float
    flops: float
    loss: float


@dataclass(frozen=True)
class Law:
    """A fit, with what draws of the same runs gave.

    Attributes:
      constants: E, A, B, a and b.
      draws: the same of each draw.
      flops_per: operations for each parameter and token: 6, and more with attention.
      runs: to which it was fitted.
    """

    constants: tuple[float, float, float, float, float]
    draws: tuple[tuple[float, float, float, float, float], ...]
    flops_per: float
    runs: tuple[Run, ...]

    def loss(self, parameters: float, tokens: float) -> float:
        """Return the loss of a run."""
        e, a, b, alpha, beta = self.constants
        return e + a / parameters**alpha + b / tokens**beta

    @property
    def tried(self) -> tuple[float, float]:
        """The fewest and the most tokens for each parameter of a run."""
        ratios = [run.tokens / run.parameters for run in self.runs]
        return min(ratios), max(ratios)

    def best(self, flops: float) -> tuple[float, float]:
        """Return the parameters and tokens with the lowest loss for a budget of operations.

        Where the constants name far more or fewer tokens for each parameter than the runs had, they
        are the nearest that a run had.
        """
        pairs = flops / self.flops_per
        ratio = self._nearest(_ratio(self.constants, pairs))
        return math.sqrt(pairs / ratio), math.sqrt(pairs * ratio)

    def _nearest(self, ratio: float) -> float:
        """Return tokens for each parameter, or the nearest of a run where they are far beyond."""
        if self._is_known(ratio):
            return ratio
        return min(self.tried, key=lambda tried: abs(math.log(tried / ratio)))

    def _is_known(self, ratio: float) -> bool:
        fewest, most = self.tried
        return fewest / _BEYOND <= ratio <= most * _BEYOND

    def interval(self, number: int) -> tuple[float, float]:
        """Return the interval in which 80% of the draws have a constant, by its place."""
        return _interval([drawn[number] for drawn in self.draws])

    def interval_of_best(self, flops: float) -> tuple[float, float]:
        """Return the interval in which 80% of the draws have the best number of parameters."""
        pairs = flops / self.flops_per
        return _interval(
            [math.sqrt(pairs / self._nearest(_ratio(drawn, pairs))) for drawn in self.draws]
        )

    def unknowns(self, flops: float | None = None) -> list[str]:
        """Return what the fit cannot tell, in sentences."""
        sizes = [run.parameters for run in self.runs]
        lines: list[str] = []
        if max(sizes) < 4 * min(sizes):
            lines.append(
                f"Sizes differ by {max(sizes) / min(sizes):.2g} times only, which hardly tells how "
                "the loss depends on them: train some that are 4 times as large."
            )
        for number, name in ((3, "parameters"), (4, "tokens")):
            low, high = self.interval(number)
            if high - low > 0.5 * abs(self.constants[number]):
                lines.append(
                    f"The exponent of {name} is between {low:.2f} and {high:.2f}: more runs with "
                    f"other numbers of {name} would tell."
                )
        ratio = 1.0 if flops is None else _ratio(self.constants, flops / self.flops_per)
        if flops is not None and not self._is_known(ratio):
            fewest, most = self.tried
            lines.append(
                f"The fit cannot tell the best size for {flops:.3g} FLOPs: {ratio:.2g} tokens for "
                f"each parameter, where runs had {fewest:.3g} to {most:.3g}. What follows has the "
                "nearest of these; more sizes and numbers of tokens would tell."
            )
        largest = max(run.flops for run in self.runs)
        if flops is not None and flops > 10 * largest:
            lines.append(
                f"The budget is {flops / largest:,.0f} times the largest run: what was fitted "
                "within a range may not hold so far beyond it."
            )
        return lines


def fit(runs: Sequence[Run], *, draws: int = _DRAWS, seed: int = 0) -> Law:
    """Return the law of some runs.

    Args:
      runs: with finite losses.
      draws: of runs with replacement, for intervals.
      seed: of these.

    Raises:
      ConfigError: there are too few runs, or all have one size or one number of tokens.
    """
    sizes, tokens = ({getattr(run, name) for run in runs} for name in ("parameters", "tokens"))
    if len(runs) < _LEAST or len(sizes) < 2 or len(tokens) < 2:
        raise ConfigError(
            f"{len(runs)} runs with {len(sizes)} sizes and {len(tokens)} numbers of "
            f"tokens are too few for a scaling law, which has five constants: train {_LEAST} or "
            "more, of several sizes and several numbers of tokens each, as with "
            "--sweep=tag:HiddenDim=128,192,256 and "
            "--sweep=tag:TokensPerParameter=5,10,20."
        )
    rows = [(run.parameters, run.tokens, run.loss) for run in runs]
    data = torch.tensor(rows, dtype=torch.float64).log()
    lowest = float(data[:, 2].min())
    starts = [(min(e, lowest - 0.05), start, start, slope, slope) for e, start, slope in _STARTS]
    every = torch.ones(len(starts), len(runs), dtype=torch.float64)
    fitted, errors = _minimize(torch.tensor(starts, dtype=torch.float64), data, every)
    best = fitted[errors.argmin()]
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(runs), (draws, len(runs)), generator=generator)
    counts = torch.nn.functional.one_hot(chosen, len(runs)).sum(1).double()
    drawn, _ = _minimize(best.expand(draws, 5).clone(), data, counts)
    ratios = sorted(run.flops / (run.parameters * run.tokens) for run in runs)
    return Law(
        constants=_constants(best),
        draws=tuple(_constants(row) for row in drawn),
        flops_per=ratios[len(ratios) // 2],
        runs=tuple(runs),
    )


def _minimize(points: Tensor, data: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the constants (log E, log A, log B, a, b) of each fit, and their losses.

    The Huber loss is minimized as a weighted sum of squares (Levenberg-Marquardt), whose weights
    follow the differences (Huber and Ronchetti, 2009, section 7.8).

    Args:
      points: starts [fits, 5].
      data: logarithms of parameters, tokens and loss [runs, 3].
      weights: of each run in each fit [fits, runs].
    """
    size, tokens, loss = data.T
    damping = torch.full((len(points), 1, 1), 1e-2, dtype=torch.float64)
    identity = torch.eye(5, dtype=torch.float64)

    def terms(points: Tensor) -> Tensor:
        e, a, b, alpha, beta = (part.unsqueeze(-1) for part in points.T)
        return torch.stack([e.expand(-1, len(loss)), a - alpha * size, b - beta * tokens])

    def error_of(points: Tensor) -> Tensor:
        gaps = (terms(points).logsumexp(0) - loss).abs()
        huber = torch.where(gaps < _DELTA, gaps**2 / 2, _DELTA * (gaps - _DELTA / 2))
        return (weights * huber).sum(-1)

    errors = error_of(points)
    for _ in range(_STEPS):
        summands = terms(points)
        gaps = summands.logsumexp(0) - loss
        of_e, of_a, of_b = summands.softmax(0)
        slopes = torch.stack([of_e, of_a, of_b, -of_a * size, -of_b * tokens], dim=-1)
        scaled = (weights * (_DELTA / gaps.abs().clamp_min(1e-12)).clamp(max=1.0)).unsqueeze(-1)
        normal = slopes.mT @ (scaled * slopes)
        right = slopes.mT @ (scaled * gaps.unsqueeze(-1))
        diagonal = normal.diagonal(dim1=1, dim2=2).clamp_min(1e-9).diag_embed()
        step = torch.linalg.solve(normal + damping * diagonal + 1e-12 * identity, right)
        moved = points - step.squeeze(-1).clamp(-1.0, 1.0)
        new = error_of(moved)
        is_better = new < errors
        points = torch.where(is_better.unsqueeze(-1), moved, points)
        errors = torch.where(is_better, new, errors)
        factor = torch.where(is_better, 0.4, 3.0).view(-1, 1, 1)
        damping = (damping * factor).clamp(1e-9, 1e9)
    return points, errors


def _constants(point: Tensor) -> tuple[float, float, float, float, float]:
    e, a, b, alpha, beta = point.tolist()
    return math.exp(e), math.exp(a), math.exp(b), alpha, beta


def _ratio(constants: Sequence[float], pairs: float) -> float:
    """Return the tokens for each parameter of the lowest loss, given the product of the two.

    Where only one of them matters, it is the largest or smallest of a finite range.
    """
    _, a, b, alpha, beta = constants
    if min(a * alpha, b * beta) <= 0:
        return math.exp(_MOST if a * alpha <= 0 else -_MOST)
    # Of a alpha / N^alpha = b beta / D^beta.
    exponent = (math.log(b * beta) - math.log(a * alpha)) * 2 + (alpha - beta) * math.log(pairs)
    return math.exp(max(-_MOST, min(_MOST, exponent / (alpha + beta))))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    low, high = (ordered[int(share * (len(ordered) - 1))] for share in _TEN_PERCENT)
    return low, high


@dataclass(frozen=True)
class Parabola:
    """The loss of runs of one budget over the logarithm of their size.

    Attributes:
      flops: the budget.
      coefficients: of the square, of the logarithm, and of one.
      runs: of the budget.
    """

    flops: float
    coefficients: tuple[float, float, float]
    runs: tuple[Run, ...]

    @property
    def best(self) -> float | None:
        """The size with the lowest loss; None if the parabola has none."""
        square, slope, _ = self.coefficients
        return math.exp(-slope / (2 * square)) if square > 0 else None


def parabolas(runs: Sequence[Run]) -> list[Parabola]:
    """Return the isoFLOP parabolas of budgets that three sizes or more have."""
    groups: list[list[Run]] = []
    for run in sorted(runs, key=lambda run: run.flops):
        if groups and run.flops < _SAME * groups[-1][0].flops:
            groups[-1].append(run)
        else:
            groups.append([run])
    fits = []
    for group in groups:
        if len({run.parameters for run in group}) >= 3:
            x = torch.tensor([math.log(run.parameters) for run in group], dtype=torch.float64)
            y = torch.tensor([run.loss for run in group], dtype=torch.float64)
            matrix = torch.stack([x**2, x, torch.ones_like(x)], dim=1)
            square, slope, base = torch.linalg.lstsq(matrix, y, driver="gelsd").solution.tolist()
            flops = sum(run.flops for run in group) / len(group)
            fits.append(Parabola(flops, (square, slope, base), tuple(group)))
    return fits


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
    if match is None or not known or not _LEAST_BUDGET < float(match[2]) < _MOST_BUDGET:
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
