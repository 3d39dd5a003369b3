"""What each run of a population had come to when one looked, in files that outlive the command."""

import json
from pathlib import Path
from typing import Any

from fidgpt.sweep.runners.tail import Tail

FOLDER = ".stretches"


class Stretches:
    """The stretches of a run that are done: rows of step, value, and words where it failed.

    Args:
      folder: of the sweep.
      run: the name of the run directory.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._path = folder / FOLDER / f"{run}.jsonl"

    def known(self, step: int) -> dict[str, Any] | None:
        """The row of a step; None where it was not come to yet."""
        return next((row for row in Tail(self._path).rows() if row["step"] == step), None)

    def add(self, step: int, value: float | None, words: str = "") -> None:
        """Takes down that a step was come to; without a value where it failed before."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        row = {"step": step, "value": value, "words": words}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    @staticmethod
    def names(run: Path) -> list[str]:
        """What a run has measured at all."""
        return list({name: None for row in Tail(run / "metrics.jsonl").rows() for name in row})

    @staticmethod
    def measured(run: Path, step: int, name: str) -> float | None:
        """What a run has measured at a step."""
        rows = [row for row in Tail(run / "metrics.jsonl").rows() if row["step"] == step]
        return float(rows[-1][name]) if rows and name in rows[-1] else None
