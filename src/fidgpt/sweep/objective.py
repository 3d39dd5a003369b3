"""Objectives: what points are compared by, and whether runs report it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fiddle as fdl
import torch

from fidgpt.files import read_json, write_whole
from fidgpt.graph import ConfigError, suggest
from fidgpt.model.reports import collecting
from fidgpt.runs.building import build_trainer
from fidgpt.train import Trainer
from fidgpt.train.loss import NextToken
from fidgpt.train.trackers.trackers import read_rows

FILE = "objective.json"  # in the directory of a sweep with an objective
USUAL = ("validation/loss", "loss")
# Names that harnesses give to metrics that are better when larger.
_LARGE = {"acc", "acc_norm", "accuracy", "bleu", "exact_match", "f1", "rouge1", "rougeL"}
# What the trainer itself reports of every step.
_OF_STEPS = (
    *("grad_norm", "learning_rate", "loss", "loss_scale", "memory", "skipped", "tokens"),
    *("step_seconds", "tokens_per_second", "utilisation"),
)
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

    @property
    def aim(self) -> str:
        """What is wanted of it, in words."""
        return f"{self.name} gets {'large' if self.is_larger_better else 'small'}"

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
    known = {name for row in rows for name in row["metrics"]}
    return Objective(next((one for one in USUAL if one in known), "loss"))


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


def refuse_unreported_by(objective: Objective, run: Path) -> None:
    """Refuse a metric that a run lacks, though it has reported others of the same evaluator.

    Raises:
      ConfigError: as above; a run that was stopped early may not have got to an evaluator.
    """
    reported = reported_by(run)
    evaluator, slash, _ = objective.name.partition("/")
    if any(not slash or name.startswith(f"{evaluator}/") for name in reported):
        refuse_unreported(objective, reported)


def refuse_unreportable(objective: Objective, cfg: fdl.Config) -> None:
    """Refuse a metric that no trainer, component or evaluator of a config reports.

    Only a run shows which names such as `moe/load_max` there are.

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
    if not slash and objective.name not in _OF_STEPS:
        trainer = build_trainer(cfg)
        reported = _reported_by_components(trainer)
        if reported is not None:
            losses = (f"{name}/loss" for name in trainer.evaluators)
            refuse_unreported(objective, [*_OF_STEPS, *reported, *losses])


def _reported_by_components(trainer: Trainer) -> list[str] | None:
    """Return the names of what components report of a step; None if that cannot be tried."""
    window = torch.zeros(1, trainer.seq_len + 1, dtype=torch.int64, device="meta")
    try:
        with collecting() as reports:
            NextToken(trainer.model, trainer.loss)(window)
        settled = [part.settle(tally) for part, tally in reports.tallies.items()]
    except Exception:  # a user's own component may need values
        return None
    return [*reports.metrics, *reports.losses, *(name for row in settled for name in row)]
