"""What a bisection tried, for a person and in a file: each probe with its value and verdict."""

import json
import math
from collections.abc import Callable
from pathlib import Path

from fidgpt.sweep.bisect.minimal import Verdict
from fidgpt.sweep.bisect.probes import Probe

LOG = "bisect.jsonl"
_SHOWN = 4  # places in a line


class ProbeLog:
    """Writes `bisect.jsonl` anew, a row a probe, and tells each of them.

    Args:
      directory: where the file lies.
      objective: the name of what is measured.
      num_pieces: how many differences there are in all.
      say: writes a line for a person.
    """

    def __init__(
        self, directory: Path, *, objective: str, num_pieces: int, say: Callable[[str], None]
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / LOG
        self._path.write_text("", encoding="utf-8")
        self._objective = objective
        self._num_pieces = num_pieces
        self._say = say
        self._count = 0

    def add(self, probe: Probe, value: float | None, verdict: Verdict) -> None:
        """Takes down what came of a probe."""
        self._count += 1
        why = probe.why or ("" if value is not None else f"it came to no {self._objective}")
        row = {
            "probe": self._count,
            "differences": list(probe.pieces),
            "verdict": verdict.value,
            "value": None if value is None or math.isnan(value) else value,
            "why": "it diverged" if value is not None and math.isnan(value) else why,
            "fingerprint": probe.point and probe.point.fingerprint,
            "directives": list(probe.point.directives) if probe.point else None,
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        came_to = row["why"] or f"{self._objective} {value:.4f}"
        self._say(
            f"probe {self._count}: {len(probe.pieces)} of {self._num_pieces} differences "
            f"({_places(probe.pieces)}): {came_to.splitlines()[0]}: {verdict.value}"
        )


def _places(pieces: tuple[str, ...]) -> str:
    shown = ", ".join(one or "the root" for one in pieces[:_SHOWN]) or "none"
    return shown + (", ..." if len(pieces) > _SHOWN else "")
