"""What varies between the points of a sweep: each axis with its values, in order and in kind."""

import itertools
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fidgpt.graph import ConfigError, suggest
from fidgpt.sweep.report.records import Record

_SEED = re.compile(r"(?i)\bseed(_\d+)?$")
_ABLATION = re.compile(r"ablate(_\d+)?")
_FAR = 5.0  # the ratio of two numbers alone from which one thinks of them as of powers


@dataclass(frozen=True)
class Column:
    """One axis.

    Attributes:
      label: its name.
      texts: its values as they were said, in order.
      numbers: the same as numbers; None where some are none.
      is_log: whether the numbers are spread evenly by their ratios, rather than their differences.
      is_repeat: whether it is there to repeat a run, so that its values are compared with nobody.
    """

    label: str
    texts: tuple[str, ...]
    numbers: tuple[float, ...] | None
    is_log: bool = False
    is_repeat: bool = False

    @property
    def is_ablation(self) -> bool:
        """Whether it leaves things out, one at a time."""
        return _ABLATION.fullmatch(self.label) is not None and "all" in self.texts


def columns_of(records: Sequence[Record], *, repeats: Sequence[str] = ()) -> list[Column]:
    """The axes on which points differ.

    Args:
      records: the points.
      repeats: the axes that only repeat a run; those named `seed` unless said.

    Raises:
      ConfigError: there is no axis of that name.
    """
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for label, text in record.values.items():
            values.setdefault(label, {})[text] = None
    for name in repeats:
        if name not in values:
            raise ConfigError(f"no axis is called {name}. {suggest(name, values)}")
    return [
        _column(label, list(texts), label in repeats or (not repeats and bool(_SEED.search(label))))
        for label, texts in values.items()
        if len(texts) > 1
    ]


def _column(label: str, texts: list[str], is_repeat: bool) -> Column:
    known = [_number(text) for text in texts]
    numbers = [number for number in known if number is not None]
    if len(numbers) < len(texts):
        return Column(label, tuple(texts), None, is_repeat=is_repeat)
    pairs = sorted(zip(numbers, texts, strict=True))
    ordered = tuple(number for number, _ in pairs)
    log = not is_repeat and is_log_spaced(ordered)
    return Column(label, tuple(text for _, text in pairs), ordered, log, is_repeat)


def is_log_spaced(numbers: Sequence[float]) -> bool:
    """Whether sorted numbers are spread more evenly by their ratios than by their differences."""
    distinct = list(dict.fromkeys(numbers))
    if len(distinct) < 2 or distinct[0] <= 0:
        return False
    if len(distinct) == 2:
        return distinct[1] / distinct[0] >= _FAR
    return _unevenness([math.log(one) for one in distinct]) < _unevenness(distinct) - 1e-9


def _unevenness(numbers: Sequence[float]) -> float:
    """How much the gaps between sorted numbers differ, in units of a mean gap."""
    gaps = [after - before for before, after in itertools.pairwise(numbers)]
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
