"""What a person sees while a corpus is prepared: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SECONDS_BETWEEN_LINES = 10.0


class PreparationProgress:
    """Phases of work measured in bytes of text, shown on the standard error.

    As a context manager it holds the terminal only inside the block. With `show=False` it is
    silent. Where there is no terminal each phase prints a line when it starts and one every ten
    seconds.
    """

    def __init__(self, *, show: bool) -> None:
        from rich.console import Console  # late: most who import this prepare nothing

        self._console = Console(file=sys.stderr, quiet=not show, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._phase = ""
        self._done = 0
        self._total: int | None = None
        self._line_due = 0.0

    def __enter__(self) -> "PreparationProgress":
        if self._console.is_terminal and not self._console.quiet:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[amount]}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def phase(self, name: str, *, total: int | None = None) -> None:
        """Begin a phase; `total` is its number of bytes, if that is known."""
        self._phase, self._done, self._total = name, 0, total
        if self._bar is None:
            self.say(f"{name} ...")
            self._line_due = time.monotonic() + _SECONDS_BETWEEN_LINES
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=total, amount="")

    def advance(self, num_bytes: int) -> None:
        """Say that this many more bytes are done."""
        self._done += num_bytes
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, amount=self._amount())
        elif time.monotonic() > self._line_due:
            self.say(f"{self._phase}: {self._amount()}")
            self._line_due = time.monotonic() + _SECONDS_BETWEEN_LINES

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(line, markup=False, highlight=False)

    def _amount(self) -> str:
        of_total = "" if self._total is None else f" of {self._total / 1e6:.1f}"
        return f"{self._done / 1e6:.1f}{of_total} MB"
