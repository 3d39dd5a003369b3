"""The number that points are compared by: which way it is better, and whether runs report it."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fidgpt.drafts import write_whole
from fidgpt.graph import ConfigError, suggest
from fidgpt.train.tracking.trackers import read_rows

FILE = "objective.json"  # in the directory of a sweep for which one was said
USUAL = ("validation/loss", "loss")
_WAYS = {"min": False, "max": True}
# What harnesses call numbers of which nobody wants less: small ones are asked for by mistake.
_LARGE = ("acc", "acc_norm", "accuracy", "bleu", "exact_match", "f1", "rouge1", "rougeL")


@dataclass(frozen=True)
class Objective:
    """A metric, and which way is better.

    Attributes:
      name: of the metric.
      is_larger_better: as of an accuracy; a loss is better when it is smaller.
    """

    name: str
    is_larger_better: bool = False

    @property
    def text(self) -> str:
        """How it is said."""
        return f"max:{self.name}" if self.is_larger_better else self.name

    @property
    def aim(self) -> str:
        """What is wanted of it, in words."""
        return f"{self.name} gets {'large' if self.is_larger_better else 'small'}"

    @property
    def way(self) -> str:
        """What it is to be: `min` or `max`."""
        return "max" if self.is_larger_better else "min"

    @property
    def worst(self) -> float:
        """A value that every other one is better than."""
        return -math.inf if self.is_larger_better else math.inf

    def sorted_by(self, value: float) -> float:
        """A number that is smaller for what is better."""
        return -value if self.is_larger_better else value


def objective_of(text: str) -> Objective:
    """`validation/loss`, which is to get small; `max:tasks/arc_easy/acc`, which is to get large.

    Raises:
      ConfigError: there is no such way, or a small accuracy is asked for without `min:`.
    """
    way, colon, rest = text.partition(":")
    name = (rest if colon else text).strip()
    if (colon and way not in _WAYS) or not name or name in _WAYS:
        raise ConfigError(
            f"--objective={text} says no number: write --objective=validation/loss, which is to "
            "get small, or --objective=max:tasks/arc_easy/acc, which is to get large."
        )
    if not colon and {*name.split("/")} & {*_LARGE}:
        raise ConfigError(
            f"--objective={text} says not which way is better: write --objective=max:{name}, or "
            f"--objective=min:{name} where less of it is."
        )
    return Objective(name, _WAYS.get(way, False) if colon else False)


def usual(rows: Iterable[Mapping[str, Any]]) -> Objective:
    """What rows of a table are compared by, unless said: the held-out loss where it is measured."""
    rows = list(rows)
    return Objective(
        next((one for one in USUAL if any(one in row["metrics"] for row in rows)), "loss")
    )


def keep(objective: Objective, directory: Path) -> None:
    """Writes into the directory of a sweep what its points are compared by."""
    write_whole(directory / FILE, json.dumps({"objective": objective.text}) + "\n")


def kept(directory: Path) -> Objective | None:
    """What the points of a sweep are compared by; None where nothing was said, or is legible."""
    try:
        said = json.loads((directory / FILE).read_text(encoding="utf-8"))
        return objective_of(said["objective"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def refuse_unreported(objective: Objective, reported: Iterable[str]) -> None:
    """Refuses a number that a run which came to its end has not reported.

    Raises:
      ConfigError: it is not among what was reported.
    """
    names = [name for name in reported if name != "step"]
    if objective.name not in names:
        raise ConfigError(
            f"no run reports --objective={objective.text}. {suggest(objective.name, names)}"
        )


def refuse_unreported_by(objective: Objective, run: Path) -> None:
    """Refuses a number that a run, which may have been stopped early, would have reported.

    Raises:
      ConfigError: all others of its kind are there.
    """
    reported = reported_by(run)
    evaluator, slash, _ = objective.name.partition("/")
    alike = [name for name in reported if not slash or name.startswith(f"{evaluator}/")]
    if alike:
        refuse_unreported(objective, reported)


def reported_by(run: Path) -> dict[str, Any]:
    """The last of each number that a run wrote, in its `metrics.jsonl`; nothing where none is."""
    path = run / "metrics.jsonl"
    last: dict[str, Any] = {}
    for row in read_rows(path) if path.exists() else []:
        last |= row
    return last
