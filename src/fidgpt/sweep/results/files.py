"""The files of a sweep's results: written whole or not at all, read as far as they are whole."""

import contextlib
import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fidgpt.drafts import write_whole
from fidgpt.sweep.runners.locking import wait_for_lock

Result = dict[str, Any]
TABLE, SHEET, LOCK = "table.jsonl", "results.csv", ".table.lock"
_FIRST = ("name", "status", "fingerprint")
_LAST = ("attempts", "seconds", "last_words", "directives")
_TYPES = {
    **dict.fromkeys(("name", "fingerprint", "status", "directory", "last_words"), str),
    **dict.fromkeys(("values", "metrics"), dict),
    **dict.fromkeys(("num_steps", "step", "attempts"), int),
    "directives": list,
    "seconds": int | float,
}


def read_table(directory: Path) -> list[Result]:
    """The rows of a sweep's results; none where nothing was run yet.

    A line that is no row, as where somebody cut the file, is passed over.
    """
    rows = (_row(line) for line in _lines(directory))
    return [row for row in rows if row is not None]


def num_damaged(directory: Path) -> int:
    """How many lines of a sweep's results are no rows."""
    return sum(_row(line) is None for line in _lines(directory))


def write_table(directory: Path, rows: Sequence[Result]) -> None:
    """Writes `table.jsonl`, and the same for a spreadsheet; the caller is `alone`."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_whole(directory / TABLE, lines)
    write_whole(directory / SHEET, sheet(rows))


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """While entered, no other process writes the results of a sweep."""
    with (directory / LOCK).open("ab") as file:
        wait_for_lock(file)
        yield


def sheet(rows: Sequence[Result]) -> str:
    """Rows as a table for a spreadsheet: a column for each axis, and for each metric."""
    axes = list(dict.fromkeys(label for row in rows for label in row["values"]))
    metrics = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_FIRST, *axes, *metrics, *_LAST])
    for row in rows:
        plain = row | {"directives": " ".join(row["directives"])}
        writer.writerow(
            [plain[key] for key in _FIRST]
            + [row["values"].get(label, "") for label in axes]
            + [row["metrics"].get(name, "") for name in metrics]
            + [plain[key] for key in _LAST]
        )
    return text.getvalue()


def _lines(directory: Path) -> list[str]:
    try:
        text = (directory / TABLE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.split("\n") if line]


def _row(line: str) -> Result | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    is_row = isinstance(row, dict) and all(
        isinstance(row.get(key), kind) for key, kind in _TYPES.items()
    )
    return row if is_row else None
