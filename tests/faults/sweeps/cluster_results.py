"""What a sweep of a few runs and many toys leaves on a cluster, compared with what it must."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from faults.results import Wrong, refuse_difference, result_of
from faults.sweeps import toy
from faults.sweeps.children import DONE, Trained
from faults.sweeps.results import SweepResult, plain_rows, refuse_second_training, sheet_of

_STEPS = list(range(1, toy.NUM_STEPS + 1))


def refuse_other(
    directory: Path, lines: Sequence[Trained], expected: SweepResult, *, real: Collection[str]
) -> None:
    """Raises Wrong where a sweep differs from the undisturbed one, or did anything twice.

    Args:
      directory: of the sweep.
      lines: of the journal.
      expected: of the undisturbed sweep, whose points were all trained.
      real: names of those that were trained here too.
    """
    rows = {row["directory"]: row for row in plain_rows(directory)}
    wanted = {row["directory"]: dict(row) for row in expected.rows}
    sheet = [row["name"] for row in sheet_of(directory)]
    if rows.keys() != wanted.keys() or sheet != [row["name"] for row in expected.rows]:
        raise Wrong(f"the results have rows of {sorted(rows)} and {sheet}")
    for name, row in wanted.items():
        if name not in real:
            row["metrics"] = toy.LAST
        if rows[name] != row:
            raise Wrong(f"{name}: the row is {rows[name]} instead of {row}")
        if name in real:
            refuse_difference(result_of(directory / name), expected.runs[name])
        else:
            _refuse_other_toy(directory / name, lines)
    refuse_second_training(lines, lost=set())


def _refuse_other_toy(directory: Path, lines: Sequence[Trained]) -> None:
    rows = (directory / "metrics.jsonl").read_text().splitlines()
    own = [one.what for one in lines if one.point == directory.name and one.what != DONE]
    for steps in ([json.loads(row)["step"] for row in rows], list(map(int, own))):
        if steps != _STEPS:
            raise Wrong(f"{directory.name} saved the steps {own}, and has rows {rows}")
    if (mark := json.loads((directory / "done.json").read_text())) != toy.LAST:
        raise Wrong(f"{directory.name}: done.json is {mark} instead of {toy.LAST}")
