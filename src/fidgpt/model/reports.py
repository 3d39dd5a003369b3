"""What parts of a model tell beside their output: auxiliary losses, metrics and tallies."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Tallier(Protocol):
    """A part that counts over a whole optimizer step, as the load of its experts."""

    def settle(self, tally: Tensor, /) -> dict[str, Tensor]:
        """Hears its tally of a step, over all micro-batches and processes; returns metrics of it.

        Called once an optimizer step, after the weights moved. A metric is one number, or a vector.
        """
        ...


class Reports:
    """What was reported while it was collecting."""

    def __init__(self) -> None:
        # A chain of objects, and neither list nor dict: torch.compile would look into those, and
        # compile a block anew for every layer, because there are more reports at each. For the same
        # reason the reports of all kinds are of one class.
        self.last = _Report(None, "", "", None)

    @property
    def losses(self) -> dict[str, Float[Tensor, ""]]:
        """What is to be added to the loss, by name; reported several times, it is summed."""
        return {name: torch.stack(values).sum() for name, values in self._named("loss").items()}

    @property
    def metrics(self) -> dict[str, Float[Tensor, ""]]:
        """What is to be looked at, by name; reported several times, it is averaged."""
        return {name: torch.stack(values).mean() for name, values in self._named("metric").items()}

    @property
    def tallies(self) -> dict[Tallier, Tensor]:
        """What each part counted, summed over its calls, in the order of the first calls."""
        found: dict[Tallier, Tensor] = {}
        for one in self._chain():
            if one.kind == "tally":
                before = found.get(one.part)
                found[one.part] = one.value if before is None else before + one.value
        return found

    def pass_on(self, other: "Reports") -> None:
        """Reports all of it to another collector too."""
        for one in self._chain():
            other.last = _Report(other.last, one.kind, one.name, one.value, one.part)

    def _named(self, kind: str) -> dict[str, list[Tensor]]:
        named: dict[str, list[Tensor]] = {}
        for one in self._chain():
            if one.kind == kind:
                named.setdefault(one.name, []).append(one.value)
        return named

    def _chain(self) -> list["_Report"]:
        """Every report, the first one first."""
        found, one = [], self.last
        while one.before is not None:
            found.append(one)
            one = one.before
        return found[::-1]


@contextmanager
def collecting() -> Iterator[Reports]:
    """Collects what is reported inside, and passes it on at the end to the collector around it.

    Only a forward pass belongs inside. A backward pass that computes blocks again (activation
    checkpointing) reports again, which nobody hears once the context has ended.
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
    """Adds a differentiable number to the loss of this forward pass, if anybody collects.

    Args:
      name: under which the metrics of training show it, such as `moe/balance`.
      value: as much as is to be added; a mean over the tokens, so that it does not depend on how
        many there are.
    """
    if _open.reports is not None:
        _open.reports.last = _Report(_open.reports.last, "loss", name, value)


def report_metric(name: str, value: Float[Tensor, ""]) -> None:
    """Shows a number among the metrics of training, if anybody collects; nothing learns from it."""
    if _open.reports is not None:
        _open.reports.last = _Report(_open.reports.last, "metric", name, value.detach())


def report_tally(part: Tallier, tally: Tensor) -> None:
    """Counts for a part, if anybody collects; its `settle` hears the sum of the optimizer step.

    Args:
      part: whose tally it is.
      tally: integers of a shape that never changes.
    """
    if _open.reports is not None:
        _open.reports.last = _Report(_open.reports.last, "tally", "", tally.detach(), part)


class _Report:
    """A link of the chain; the first one hangs on nothing and says nothing."""

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
