"""The law L(N, D) = E + A / N^a + B / D^b, fitted to the losses of runs.

As in Hoffmann et al., 2022 (arXiv:2203.15556, approach 3 and appendix D.3): the Huber loss of the
difference of logarithms is minimized from a grid of starts. Intervals come from fits to runs drawn
with replacement (Besiroglu et al., 2024, arXiv:2404.10102). The second method fits isoFLOP
parabolas (approach 2).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from fidgpt.graph import ConfigError

__all__ = ["Law", "Parabola", "Run", "fit", "parabolas"]

_DELTA = 1e-3  # where the loss of a difference of logarithms becomes linear
_STARTS = [*product((0.0, 0.7, 1.4), (2.0, 6.0, 10.0, 16.0), (0.2, 0.5, 0.9))]
_DRAWS, _STEPS = 200, 150
_LEAST = 6  # runs: one more than the law has constants
_SAME = 1.15  # ratio of operations up to which runs have the same budget
_BEYOND = 10.0  # how far a law may go from the runs, as a ratio of tokens for each parameter
_MOST = 60.0  # of the logarithm of tokens for each parameter
_TEN_PERCENT = (0.1, 0.9)  # quantiles of an interval of 80%


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
        return _interval([draw[number] for draw in self.draws])

    def interval_of_best(self, flops: float) -> tuple[float, float]:
        """Return the interval in which 80% of the draws have the best number of parameters."""
        pairs = flops / self.flops_per
        return _interval(
            [math.sqrt(pairs / self._nearest(_ratio(draw, pairs))) for draw in self.draws]
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
        draws=tuple(_constants(draw) for draw in drawn),
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
