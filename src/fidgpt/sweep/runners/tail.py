"""Following files that others write: rows of metrics as they come, and last words of a log.

It loads the standard library alone, so that it can be sent to a node as it stands.
"""

import json
import signal
from pathlib import Path
from typing import Any

_WIDEST = 300
# What processes of a run say of each other's end, and not of their own.
_SECOND_HAND = ("another process of the run is gone", "the main process failed")


class Tail:
    """The rows of a metrics file that were written since one last looked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def rows(self) -> list[dict[str, Any]]:
        """The new rows; what is no row, as a line that is half written, is passed over."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._at:  # cut, as a run does that goes on from earlier
                    self._at = 0
                file.seek(self._at)
                text = file.read()
        except OSError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        return [row for line in whole.splitlines() if (row := _row(line)) is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def of_rank(path: Path, rank: int) -> Path:
    """The file of one of several processes: the first one has that of the point."""
    return path.with_suffix(f".{rank}{path.suffix}") if rank else path


def is_second_hand(words: str) -> bool:
    """Whether last words only say that another process of the run failed."""
    return words.startswith(_SECOND_HAND)


def last_words(log: Path, *, after: int, status: int) -> str:
    """Why a process ended, in a line.

    Args:
      log: what it wrote.
      after: where in the log its own words begin.
      status: how it ended: the signal that killed it, made negative, or its exit status.
    """
    try:
        with log.open("rb") as file:
            file.seek(after)
            text = file.read().decode(errors="replace")
    except OSError:  # somebody removed it
        text = ""
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        return f"killed by {name}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [i for i, line in enumerate(lines) if line.startswith("error:")]
    if told:
        words = " ".join(lines[told[-1] :]).removeprefix("error:").strip()
    else:
        words = lines[-1] if lines else f"exit status {status}, without a word"
    return words if len(words) <= _WIDEST else words[: _WIDEST - 3] + "..."
