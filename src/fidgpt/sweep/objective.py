"""The number that points are compared by: whether a run reports it at all, and what it came to."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fidgpt.graph import ConfigError, suggest
from fidgpt.train.tracking.trackers import read_rows

_OF_STEPS = ("grad_norm", "learning_rate", "moe", "mtp", "update_ratio")  # measured as one trains


def refuse_unknown(objective: str, bound: Any) -> None:
    """Refuses a number that no evaluator of a config measures, before anything runs.

    Args:
      objective: the name of the number, such as `validation/loss`.
      bound: the graph of the run.

    Raises:
      ConfigError: there is no such evaluator.
    """
    evaluator, slash, _ = objective.partition("/")
    evaluators = getattr(bound, "evaluators", None)
    if not slash or evaluator in _OF_STEPS or not isinstance(evaluators, Mapping):
        return
    if evaluator not in evaluators:
        raise ConfigError(
            f"no run reports --objective={objective}: it has no evaluator {evaluator!r}. "
            f"{suggest(evaluator, evaluators)}"
        )


def refuse_unreported(objective: str, reported: Iterable[str]) -> None:
    """Refuses a number that a run which came to its end has not reported.

    Raises:
      ConfigError: it is not among what was reported.
    """
    names = [name for name in reported if name != "step"]
    if objective not in names:
        raise ConfigError(f"no run reports --objective={objective}. {suggest(objective, names)}")


def reported_by(run: Path) -> dict[str, Any]:
    """The last of each number that a run wrote, in its `metrics.jsonl`; nothing where none is."""
    path = run / "metrics.jsonl"
    last: dict[str, Any] = {}
    for row in read_rows(path) if path.exists() else []:
        last |= row
    return last
