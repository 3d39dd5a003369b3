"""Objectives."""

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fiddle as fdl
import torch

from fidgpt.compose.runs import build_trainer
from fidgpt.compose.spelling import DEFAULT_CONFIG
from fidgpt.cost import first_of_each
from fidgpt.files import write_whole
from fidgpt.graph import ConfigError, suggest
from fidgpt.model.reports import collecting
from fidgpt.sweep.moves import axis_names
from fidgpt.sweep.values import Item
from fidgpt.train import Trainer
from fidgpt.train.loss import NextToken
from fidgpt.train.trackers.trackers import read_rows

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


_FILE = "sweeps.jsonl"  # a row for each


@dataclass(frozen=True)
class Description:
    """What a sweep is about, whatever its values are, and however often it repeats them.

    Attributes:
      directives: those outside of the axes.
      axes: the names of what varies.
    """

    directives: Sequence[str]
    axes: Sequence[str]

    @property
    def text(self) -> str:
        """The same in words."""
        base = " ".join(self.directives) or f"config:{DEFAULT_CONFIG}"
        return f"{base} over {', '.join(self.axes) or 'nothing'}"

    def resembles(self, other: "Description") -> bool:
        """Whether one of them only varies more of the same config than the other."""
        mine, theirs = {*self.axes}, {*other.axes}
        return self.directives == other.directives and (mine <= theirs or theirs <= mine)


def described(items: Sequence[Item]) -> Description:
    """What directives and axes are about."""
    axes = [item for item in items if not isinstance(item, str) and not item.is_repeat]
    names = [name for axis in axes for name in axis_names(axis)]
    return Description([item for item in items if isinstance(item, str)], names)


def enter(directory: Path, sweep: Description) -> None:
    """Takes down in a directory that a sweep runs there; once."""
    there = _entered(directory)
    if sweep not in there:
        rows = (json.dumps(asdict(one), ensure_ascii=False) for one in (*there, sweep))
        write_whole(directory / _FILE, "".join(f"{row}\n" for row in rows))


def neighbours(directory: Path, sweep: Description) -> list[str]:
    """A line for each sweep in a directory whose points are no points of this one."""
    return [
        f"{directory} holds points of another sweep too, {one.text}: a report compares all of "
        "them. Name another --run_dir to keep them apart."
        for one in _entered(directory)
        if not one.resembles(sweep)
    ]


def strangers(directory: Path) -> list[str]:
    """What the sweeps in a directory are about, where not all of them were swept alike."""
    there = _entered(directory)
    is_alike = all(one.resembles(other) for one, other in itertools.combinations(there, 2))
    return [] if is_alike else [one.text for one in there]


def _entered(directory: Path) -> list[Description]:
    try:
        lines = (directory / _FILE).read_text(encoding="utf-8").splitlines()
        return [Description(row["directives"], row["axes"]) for row in map(json.loads, lines)]
    except (OSError, ValueError, KeyError, TypeError):  # what it warns of is no fault
        return []


# What the trainer itself tells of every step.
_OF_STEPS = (
    *("grad_norm", "learning_rate", "loss", "loss_scale", "memory", "skipped", "tokens"),
    *("tokens_per_second", "utilisation"),
)
# Groups of numbers that are measured as one trains, and not by an evaluator.
_GROUPS = ("grad_norm", "learning_rate", "moe", "mtp", "update_ratio")


def refuse_unreportable(objective: Objective, cfg: fdl.Config) -> None:
    """Refuses a number that neither the trainer of a config tells, nor a part, nor an evaluator.

    What is measured under a name such as `moe/load_max`, only a run shows.

    Args:
      objective: such as `validation/loss`.
      cfg: the graph of the run.

    Raises:
      ConfigError: no run has such a number.
    """
    group, slash, _ = objective.name.partition("/")
    evaluators = getattr(cfg, "evaluators", None)
    if slash and isinstance(evaluators, Mapping) and group not in (*_GROUPS, *evaluators):
        raise ConfigError(
            f"no run reports --objective={objective.text}: it has no evaluator {group!r}. "
            f"{suggest(group, evaluators)}"
        )
    if not slash and objective.name not in _OF_STEPS:
        _refuse_untold(objective, build_trainer(cfg))


def _refuse_untold(objective: Objective, trainer: Trainer) -> None:
    told = _told_by_parts(trainer)
    if told is not None and objective.name not in told:
        names = [*_OF_STEPS, *told, *(f"{name}/loss" for name in trainer.evaluators)]
        raise ConfigError(
            f"no run reports --objective={objective.text}. {suggest(objective.name, names)}"
        )


def _told_by_parts(trainer: Trainer) -> list[str] | None:
    """The names of what parts report of a step; None where that cannot be tried."""
    window = torch.zeros(1, trainer.seq_len + 1, dtype=torch.int64, device="meta")
    try:
        with first_of_each(trainer.model), collecting() as reports:
            NextToken(trainer.model, trainer.loss)(window)
        settled = [part.settle(tally) for part, tally in reports.tallies.items()]
    except Exception:  # whatever a part of somebody's own does without memory
        return None
    return [*reports.metrics, *reports.losses, *(name for row in settled for name in row)]
