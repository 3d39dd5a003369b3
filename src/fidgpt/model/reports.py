"""Auxiliary losses, metrics and tallies that modules report during a forward pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Tallier(Protocol):
    """A module with counts over a whole optimizer step, such as the load of its experts."""

    def settle(self, tally: Tensor, /) -> dict[str, Tensor]:
        """Process the tally of a step, summed over micro-batches and processes, and return metrics.

        Called once per optimizer step, after the update. Metrics are scalars or vectors.
        """
        ...


class Reports:
    """The reports of a forward pass."""

    def __init__(self) -> None:
        # A linked list: torch.compile guards on the length of lists and dicts, and would recompile
        # a block for every layer. For the same reason, all kinds of reports are one class.
        self.last = _Report(None, "", "", None)

    @property
    def losses(self) -> dict[str, Float[Tensor, ""]]:
        """Terms of the loss by name; values of the same name are summed."""
        return {name: torch.stack(values).sum() for name, values in self._named("loss").items()}

    @property
    def metrics(self) -> dict[str, Float[Tensor, ""]]:
        """Metrics by name; values of the same name are averaged."""
        return {name: torch.stack(values).mean() for name, values in self._named("metric").items()}

    @property
    def tallies(self) -> dict[Tallier, Tensor]:
        """The tally of each module, summed over its calls, in the order of the first calls."""
        found: dict[Tallier, Tensor] = {}
        for one in self._chain():
            if one.kind == "tally":
                before = found.get(one.part)
                found[one.part] = one.value if before is None else before + one.value
        return found

    def pass_on(self, other: "Reports") -> None:
        """Copy all reports to another collector."""
        for one in self._chain():
            other.last = _Report(other.last, one.kind, one.name, one.value, one.part)

    def _named(self, kind: str) -> dict[str, list[Tensor]]:
        named: dict[str, list[Tensor]] = {}
        for one in self._chain():
            if one.kind == kind:
                named.setdefault(one.name, []).append(one.value)
        return named

    def _chain(self) -> list["_Report"]:
        """Return all reports in order."""
        found, one = [], self.last
        while one.before is not None:
            found.append(one)
            one = one.before
        return found[::-1]


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


def report_loss(name: str, value: Float[Tensor, ""]) -> None:
    """Add a differentiable scalar to the loss of this forward pass; no-op without a collector.

    Args:
      name: name of the training metric, such as `moe/balance`.
      value: scalar loss term; a mean over tokens, so that it does not depend on their number.
    """
    if _open.reports is not None:
        _open.reports.last = _Report(_open.reports.last, "loss", name, value)


def report_metric(name: str, value: Float[Tensor, ""]) -> None:
    """Report a scalar training metric, which is detached; no-op without a collector."""
    if _open.reports is not None:
        _open.reports.last = _Report(_open.reports.last, "metric", name, value.detach())


def report_tally(part: Tallier, tally: Tensor) -> None:
    """Add to the tally that `settle` of a module receives; no-op without a collector.

    Args:
      part: the module.
      tally: integers, always of the same shape.
    """
    if _open.reports is not None:
        _open.reports.last = _Report(_open.reports.last, "tally", "", tally.detach(), part)


class _Report:
    """A node of the linked list; the first one is empty."""

    def __init__(
        self, before: "_Report | None", kind: str, name: str, value: Any, part: Any = None
    ) -> None:
        self.before = before
        self.kind = kind
        self.name = name
        self.value = value
        self.part = part


class _Open:
    """The innermost collector."""

    reports: Reports | None = None


_open = _Open()
