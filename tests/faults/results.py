"""What a run leaves: its numbers and its last checkpoint, to be compared bit for bit."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from fidgpt.train.checkpoints import manifest
from fidgpt.train.trackers.trackers import read_rows, reproducible


class Wrong(AssertionError):
    """What a fault must not do to a run was done."""


class Result(NamedTuple):
    """What must be alike.

    Attributes:
      rows: of `metrics.jsonl`, without what a clock measured.
      files: SHA-256 of each file of the last checkpoint: weights, optimizer, averages, data.
    """

    rows: list[dict[str, Any]]
    files: dict[str, str]


def result_of(run: Path) -> Result:
    """Reads a run that is done.

    Raises:
      Wrong: it left no rows, or no good checkpoint.
    """
    metrics = run / "metrics.jsonl"
    rows = read_rows(metrics)
    if len(rows) != len(metrics.read_bytes().splitlines()):
        raise Wrong(f"row {len(rows) + 1} of {metrics} is none")
    newest = max(manifest.find(run).items(), default=None)
    if newest is None:
        raise Wrong(f"{run} has no checkpoint")
    if reason := manifest.damage(newest[1]):
        raise Wrong(f"{newest[1]} {reason}")
    files = manifest.read_manifest(newest[1])["files"]
    return Result(
        [reproducible(row) for row in rows],
        {name: seal["sha256"] for name, seal in files.items()},
    )


def refuse_difference(found: Result, expected: Result) -> None:
    """Raises Wrong where two results differ in a bit, saying in what."""
    steps = [row["step"] for row in found.rows]
    if steps != (wanted := [row["step"] for row in expected.rows]):
        raise Wrong(f"the rows are of steps {steps} instead of {wanted}")
    for one, other in zip(found.rows, expected.rows, strict=True):
        if json.dumps(one) != json.dumps(other):
            keys = sorted(k for k in one.keys() | other.keys() if one.get(k) != other.get(k))
            raise Wrong(
                f"step {one['step']}: {keys[0]} is {one.get(keys[0])}, not {other.get(keys[0])}"
            )
    names = found.files.keys() | expected.files.keys()
    if other := sorted(n for n in names if found.files.get(n) != expected.files.get(n)):
        raise Wrong(f"the last checkpoint has other bytes in {', '.join(other)}")
