"""Objectives: what points are compared by, and whether runs report it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fiddle as fdl

from fidgpt.files import read_json, write_whole
from fidgpt.graph import ConfigError, suggest
from fidgpt.train.trackers.trackers import read_rows

FILE = "objective.json"  # in the directory of a sweep with an objective
USUAL = ("validation/loss", "loss")
# Names that harnesses give to metrics that are better when larger.
_LARGE = {"acc", "acc_norm", "accuracy", "bleu", "exact_match", "f1", "rouge1", "rougeL"}
# Groups of metrics that are measured in training, and not by an evaluator.
_GROUPS = ("grad_norm", "learning_rate", "moe", "mtp", "update_ratio")


@dataclass(frozen=True)
class Objective:
    """A metric, and which direction is better.

    Attributes:
      name: of the metric.
      is_larger_better: as for an accuracy; a smaller loss is better.
    """

    name: str
    is_larger_better: bool = False

    @property
    def text(self) -> str:
        """The value of --objective."""
        return f"max:{self.name}" if self.is_larger_better else self.name

    def sorted_by(self, value: float) -> float:
        """Return a number that is smaller for better values."""
        return -value if self.is_larger_better else value


def objective_of(text: str) -> Objective:
    """Parse `validation/loss`, which is minimized, or `max:tasks/arc_easy/acc`, which is maximized.

    Raises:
      ConfigError: there is no such direction, or an accuracy lacks one.
    """
    way, colon, name = text.partition(":") if ":" in text else ("min", "", text)
    name = name.strip()
    if way not in ("min", "max") or name in ("", "min", "max"):
        raise ConfigError(
            f"--objective={text} must name a metric: write --objective=validation/loss, which is "
            "minimized, or --objective=max:tasks/arc_easy/acc, which is maximized."
        )
    if not colon and _LARGE.intersection(name.split("/")):
        raise ConfigError(
            f"--objective={text} lacks the direction that is better: write "
            f"--objective=max:{name}, or --objective=min:{name} if smaller is better."
        )
    return Objective(name, way == "max")


def usual(rows: Iterable[Mapping[str, Any]]) -> Objective:
    """Return the default objective of rows of a table: the held-out loss where it is measured."""
    measured = {name for row in rows for name in row["metrics"]}
    return Objective(next((name for name in USUAL if name in measured), "loss"))


def write_objective(objective: Objective, directory: Path) -> None:
    """Write what the points of a sweep are compared by into its directory."""
    write_whole(directory / FILE, json.dumps({"objective": objective.text}) + "\n")


def read_objective(directory: Path) -> Objective | None:
    """Return what the points of a sweep are compared by; None if that is not recorded."""
    try:
        return objective_of(read_json(directory / FILE)["objective"])
    except (ValueError, KeyError, TypeError):
        return None


def reported_by(run: Path) -> dict[str, Any]:
    """Return the last value of each metric in the `metrics.jsonl` of a run."""
    path = run / "metrics.jsonl"
    last: dict[str, Any] = {}
    for row in read_rows(path) if path.exists() else []:
        last |= row
    return last


def refuse_unreported(objective: Objective, reported: Iterable[str]) -> None:
    """Refuse a metric that a finished run has not reported.

    Raises:
      ConfigError: it is not among the reported ones.
    """
    names = [name for name in reported if name != "step"]
    if objective.name not in names:
        raise ConfigError(
            f"no run reports --objective={objective.text}. {suggest(objective.name, names)}"
        )


def refuse_unreportable(objective: Objective, cfg: fdl.Config) -> None:
    """Refuse a metric of an evaluator that a config does not have.

    Args:
      objective: such as `validation/loss`.
      cfg: the graph of the run.

    Raises:
      ConfigError: no run has such a metric.
    """
    group, slash, _ = objective.name.partition("/")
    evaluators = getattr(cfg, "evaluators", None)
    if slash and isinstance(evaluators, Mapping) and group not in (*_GROUPS, *evaluators):
        raise ConfigError(
            f"no run reports --objective={objective.text}: it has no evaluator {group!r}. "
            f"{suggest(group, evaluators)}"
        )
