"""Golden texts: comparison with a file, with the full difference if they differ."""

from collections.abc import Callable
from pathlib import Path

import pytest

Explain = Callable[[list[str]], list[str]]
GOLDENS = Path(__file__).parent / "goldens"
REMEDY = "If the change is meant: make test ARGS=--update-goldens, and read the difference."


def compare_with_golden(
    path: Path, text: str, *, update: bool, explain: Explain | None = None
) -> None:
    """Fails unless the file holds `text`; with `update`, writes it there instead.

    The result of `explain` for the new lines is printed below the difference.
    """
    text = text.rstrip("\n") + "\n"
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    if not path.exists():
        pytest.fail(f"There is no golden {path.name}. {REMEDY}", pytrace=False)
    golden = path.read_text(encoding="utf-8")
    if text != golden:
        from fidgpt.goldens import difference  # late: the controller of xdist needs no torch

        lines, new = difference(golden, text, path.name)
        explained = explain(new) if explain else []
        pytest.fail("\n".join([lines, *explained, REMEDY]), pytrace=False)
