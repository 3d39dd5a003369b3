"""How the tests of `diff` ask what it tells."""

from typing import Any

from fidgpt.graph import diff, diff_text


def told(old: Any, new: Any) -> list[str]:
    """The lines of the difference."""
    return diff_text(diff(old, new)).splitlines()
