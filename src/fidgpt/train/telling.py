"""Words for a person beside what a run prints of itself."""

import contextlib
import sys


def tell(line: str) -> None:
    """Says a line on standard error; where the terminal is gone, the run goes on unheard."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr)
