"""What the points of a report are compared by."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fidgpt.graph import ConfigError, suggest
from fidgpt.sweep.report.records import Record, is_number
from fidgpt.sweep.results.objective import USUAL, Objective, kept, objective_of


def choose_objective(
    records: Sequence[Record], directory: Path, *, said: str | None = None
) -> Objective:
    """The metric that a report is about.

    Args:
      records: the points.
      directory: of the sweep.
      said: what to compare by; unless said, what the sweep was told to compare by, or else the
        held-out loss where it is measured.

    Raises:
      ConfigError: no point is finished, or none that is has measured it.
    """
    chosen = kept(directory) if said is None else objective_of(said)
    anywhere = _metrics(records)
    if chosen is not None and chosen.name not in anywhere:
        raise ConfigError(
            f"no point of {directory} has measured {chosen.name}. {suggest(chosen.name, anywhere)}"
        )
    finished = [record for record in records if record.is_finished]
    if not finished:
        raise ConfigError(f"no point of {directory} is finished yet: {_states(records)}")
    known = _metrics(finished)
    if chosen is not None and chosen.name not in known:
        raise ConfigError(f"no finished point of {directory} has measured {chosen.name}.")
    if chosen is not None:
        return chosen
    usual = next((name for name in USUAL if name in known), None)
    if usual is None:
        there = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"say what to compare by: --objective=NAME, of these: {there}.")
    return Objective(usual)


def _metrics(records: Sequence[Record]) -> list[str]:
    """All that was measured as a number, in the order of its first appearance."""
    found: dict[str, None] = {}
    for record in records:
        for row in (*record.rows, record.row["metrics"]):
            found |= {key: None for key, value in row.items() if is_number(value)}
    found.pop("step", None)
    return list(found)


def _states(records: Sequence[Record]) -> str:
    """How many points are how far; of those that failed, why the first one did."""
    counts = Counter(record.status for record in records)
    text = ", ".join(f"{count} {status}" for status, count in counts.items()) + "."
    words = next((one for one in records if one.row["last_words"]), None)
    return f"{text} {words.name} said: {words.row['last_words']}" if words else text
