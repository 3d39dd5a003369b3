"""Auxiliary losses, metrics and tallies that modules report during a forward pass."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fidgpt.attributes import changed

Counts = Sequence[Int64[Tensor, "..."]]
Totals = tuple[Sequence[int | Tensor], Counts, Counts]


class RealCount(NamedTuple):
    """The number of tokens that are no padding, which each `Share` knows of its pass.

    Attributes:
      columns: among how many columns of whole rows, from the first on.
    """

    columns: int


Count = int | RealCount | Int64[Tensor, ""] | None


@runtime_checkable
class Tallier(Protocol):
    """A module with counts over a whole optimizer step, such as the load of its experts."""

    def settle(self, tally: Tensor, /) -> dict[str, Tensor]:
        """Process the tally of a step, summed over micro-batches and processes, and return metrics.

        Called once per optimizer step, after the update. Metrics are scalars or vectors.
        """
        ...


@runtime_checkable
class BatchLoss(Protocol):
    """A loss that depends on counts over the whole batch, which no single pass can know."""

    def loss_of_batch(self, value: Tensor, counts: Int64[Tensor, "..."], /) -> Float[Tensor, ""]:
        """Return the loss of a pass.

        Args:
          value: what the pass reported. The loss is linear in it, so that passes add up.
          counts: counts of the same shape as the pass reported, summed over the whole batch.
        """
        ...


@runtime_checkable
class Share(Protocol):
    """The share of a pass in an optimizer step of several micro-batches or processes.

    Attributes:
      num_processes: processes whose gradients are averaged.
    """

    num_processes: int

    @property
    def of_targets(self) -> float | Float[Tensor, ""]:
        """Its fraction of the tokens that count in the loss, times `num_processes`."""
        ...

    @property
    def is_counted(self) -> bool | Bool[Tensor, ""]:
        """Whether any token of the step counts in the loss."""
        ...

    def of_real(self, columns: int, /) -> float | Float[Tensor, ""]:
        """Return its fraction of the tokens of these columns that are no padding, times processes.

        Args:
          columns: as in `RealCount`.
        """
        ...

    def totals(self, fixed: Sequence[int], counted: Counts, by_sequence: Counts, /) -> Totals:
        """Return these counts of a pass summed over all passes of the step.

        Args:
          fixed: counts that depend on the shape of the pass only.
          counted: counts that depend on its tokens.
          by_sequence: counts of each sequence, summed only over the processes that share it.
        """
        ...


class Reports:
    """The reports of a forward pass."""

    def __init__(self) -> None:
        # A linked list: torch.compile guards on the length of lists and dicts, and would recompile
        # a block for every layer. For the same reason, all kinds of reports are one class, and the
        # list is never empty.
        self.last = _Report(None, "", "", None)

    @property
    def losses(self) -> dict[str, Float[Tensor, ""]]:
        """Terms of the loss by name, if this pass is all of the batch."""
        return self.losses_of(None)

    @property
    def metrics(self) -> dict[str, Float[Tensor, ""]]:
        """Metrics by name, if this pass is all of the batch."""
        return self.metrics_of(None)

    def losses_of(self, share: Share | None) -> dict[str, Float[Tensor, ""]]:
        """Return the terms of the loss by name; values of the same name are summed.

        Args:
          share: of this pass in its step, by which terms are scaled, so that the sum over
            micro-batches, averaged over processes, is the term of the whole batch; None if this
            pass is all of it.
        """
        named = self._named("loss", share)
        return {name: torch.stack(values).sum() for name, values in named.items()}

    def metrics_of(self, share: Share | None) -> dict[str, Float[Tensor, ""]]:
        """Return metrics by name, scaled like losses; values of the same name are averaged."""
        named = self._named("metric", share)
        return {name: torch.stack(values).mean() for name, values in named.items()}

    @property
    def num_metrics(self) -> Counter[str]:
        """How many values of each metric were reported."""
        return Counter(report.name for report in self._chain() if report.kind == "metric")

    @property
    def counted(self) -> Counts:
        """The counts that depend on the tokens of the pass, to be summed over the whole step."""
        both = (
            count
            for report in self._chain()
            for count in (report.count, None if report.by_sequence else report.counts)
        )
        return [count for count in both if isinstance(count, Tensor)]

    @property
    def tallies(self) -> dict[Tallier, Tensor]:
        """The tally of each module, summed over its calls, in the order of the first calls."""
        sums: dict[Tallier, Tensor] = {}
        for report in self._chain():
            if report.kind == "tally":
                before = sums.get(report.part)
                sums[report.part] = report.value if before is None else before + report.value
        return sums

    def pass_on(self, other: "Reports") -> None:
        """Copy all reports to another collector."""
        for report in self._chain():
            other.last = replace(report, before=other.last)

    def _named(self, kind: str, share: Share | None) -> dict[str, list[Tensor]]:
        chain = self._chain()
        fixed = [report.count for report in chain if isinstance(report.count, int)]
        by_sequence = [r.counts for r in chain if r.by_sequence and r.counts is not None]
        sums: Totals = fixed, self.counted, by_sequence
        if share is not None:
            sums = share.totals(*sums)
        totals, counts, of_sequences = map(iter, sums)  # in the order of the reports
        named: dict[str, list[Tensor]] = {}
        for report in chain:
            is_fixed, value = isinstance(report.count, int), report.value
            is_known = report.count is None or isinstance(report.count, RealCount)
            total = None if is_known else next(totals if is_fixed else counts)
            if report.counts is not None:
                all_counts = next(of_sequences if report.by_sequence else counts)
                value = report.part.loss_of_batch(value, all_counts)
            if report.kind == kind:
                if share is not None:
                    value = scaled(value, _fraction(report.count, total, share))
                named.setdefault(report.name, []).append(value)
        return named

    def _chain(self) -> list["_Report"]:
        """Return all reports in order."""
        chain, report = [], self.last
        while report.before is not None:
            chain.append(report)
            report = report.before
        return chain[::-1]


@contextmanager
def collecting() -> Iterator[Reports]:
    """Collect the reports of forward passes; on exit, pass them to the enclosing collector, if any.

    Leave the context before the backward pass, in which activation checkpointing reports again:
    without a collector this is ignored.
    """
    outer, _open.reports = _open.reports, Reports()
    reports = _open.reports
    try:
        yield reports
    finally:
        _open.reports = outer
    if outer is not None:
        reports.pass_on(outer)


def not_collecting() -> AbstractContextManager[None]:
    """Ignore the reports of forward passes, such as passes of other models."""
    return changed(_open, reports=None)


def report_loss(name: str, value: Float[Tensor, ""], *, count: Count = None) -> None:
    """Add a differentiable scalar to the loss of this forward pass; no-op without a collector.

    Args:
      name: name of the training metric, such as `moe/balance`.
      value: scalar loss term; a mean over tokens, so that it does not depend on their number.
      count: number of tokens in that mean, by which micro-batches and processes are weighted; an
        int if it depends on shapes only, and a `RealCount` if the mean leaves out padding. None for
        the tokens that count in the model's own loss.
    """
    _add("loss", name, value, count=count)


def report_batch_loss(
    part: BatchLoss,
    name: str,
    value: Tensor,
    *,
    counts: Int64[Tensor, "..."],
    count: int | RealCount,
    by_sequence: bool = False,
) -> None:
    """Add a loss that `part` computes from counts over the whole batch; no-op without a collector.

    Args:
      part: computes it.
      name: name of the training metric.
      value: differentiable tensor; a mean over tokens.
      counts: counts of this pass, without gradient.
      count: number of tokens in the mean, as in `report_loss`.
      by_sequence: sum the counts over the processes that share the sequences of this pass, instead
        of over the whole batch.
    """
    _add("loss", name, value, part, count, counts.detach(), by_sequence)


def report_metric(name: str, value: Float[Tensor, ""], *, count: Count = None) -> None:
    """Report a scalar training metric, which is detached; no-op without a collector.

    Args:
      name: name of the metric.
      value: a mean over tokens.
      count: their number, as in `report_loss`.
    """
    _add("metric", name, value.detach(), count=count)


def report_tally(part: Tallier, tally: Tensor) -> None:
    """Add to the tally that `settle` of a module receives; no-op without a collector.

    Args:
      part: the module.
      tally: integers, always of the same shape.
    """
    _add("tally", "", tally.detach(), part)


@dataclass(eq=False)
class _Report:
    """A node of the linked list; the first one is empty."""

    before: "_Report | None"
    kind: str
    name: str
    value: Any
    part: Any = None
    count: Count = None
    counts: Tensor | None = None
    by_sequence: bool = False


def _add(kind: str, name: str, value: Tensor, *more: Any, **named: Any) -> None:
    """Add a report to the innermost collector, if there is one; the arguments are `_Report`'s."""
    if _open.reports is not None:
        _open.reports.last = _Report(_open.reports.last, kind, name, value, *more, **named)


def scaled(value: Tensor, factor: float | Tensor) -> Tensor:
    """Return the product, in the format of the value."""
    return value * (factor.to(value.dtype) if isinstance(factor, Tensor) else factor)


def _fraction(count: Count, total: int | Tensor | None, share: Share) -> float | Tensor:
    """Return the fraction of a pass in a mean over the whole batch, times the processes."""
    if isinstance(count, RealCount):
        return share.of_real(count.columns)
    if count is None or total is None:
        return share.of_targets
    if isinstance(total, Tensor):
        return count * share.num_processes / total.clamp_min(1)
    return count * share.num_processes / max(1, total)


class _Open:
    """The innermost collector."""

    def __init__(self) -> None:
        # Not of the class: an attribute that is new after a pass would compile it again.
        self.reports: Reports | None = None


_open = _Open()
