"""The console: facts at the start, progress, and results."""

import time
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from fidgpt.train.estimates.facts import Facts
from fidgpt.train.run_directory import RunDirectory
from fidgpt.train.trackers.trackers import Row

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import Progress, TaskID

__all__ = ["Console"]


_LINES_WITHOUT_A_TERMINAL = 20
_ROOM_BESIDE_NUMBERS = 40  # columns: the step, a short bar and the time left
_WIDTH_WITHOUT_A_TERMINAL = 1000  # no wrapping, so that a path stays in one piece


class Console:
    """Prints a table of facts, then a progress bar; without a terminal, a line now and then.

    At the end the bar gives way to a line with the numbers of the last step.
    """

    on_terminal: ClassVar[bool] = True

    def __init__(self) -> None:
        self._rich: RichConsole | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._facts: Facts | None = None
        self._begun_at, self._num_rows = 0.0, 0

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        from rich.console import Console as RichConsole  # late: commands that train nothing

        from fidgpt.train.estimates.summary_text import facts_table

        self._facts = facts
        self._begun_at, self._num_rows = time.monotonic(), 0
        self._rich = RichConsole(highlight=False)
        if not self._rich.is_terminal:
            self._rich.width = _WIDTH_WITHOUT_A_TERMINAL
        self._rich.print(facts_table(run, facts, step=step))
        if self._rich.is_terminal:
            self._progress = progress_bar(self._rich)
            self._task = self._progress.add_task(
                "", total=facts.num_steps, completed=step, numbers=""
            )
            self._progress.start()

    def log(self, row: Row) -> None:
        assert self._rich is not None and self._facts is not None
        self._num_rows += 1
        evaluators = self._facts.evaluators
        if values := {key: row[key] for key in row if key.partition("/")[0] in evaluators}:
            shown = "  ".join(f"{key.replace('_', ' ')} {_short(values[key])}" for key in values)
            self.print(f"step {row['step']}: {shown}")
        for text in row.get("samples", ()):
            self.print(f"step {row['step']} writes: {text}")
        if row.get("skipped"):
            self.print(
                f"step {row['step']} is skipped: loss {_short(row.get('loss', 0))}, gradient "
                f"norm {row['grad_norm']:.4g}"
            )
        if self._progress is not None and self._task is not None:
            numbers = _numbers(row, room=self._rich.width - _ROOM_BESIDE_NUMBERS)
            self._progress.update(self._task, completed=row["step"], numbers=numbers)
            if row["step"] < self._facts.num_steps:
                return
            self.finish()  # the bar makes room for the numbers of the last step
        step, last = row["step"], self._facts.num_steps
        if step in (1, last) or step % max(1, last // _LINES_WITHOUT_A_TERMINAL) == 0:
            # Pace of rows, not of steps: a run that rolls back repeats some.
            pace = (time.monotonic() - self._begun_at) / self._num_rows
            left = timedelta(seconds=round(pace * (last - step)))
            self.print(f"step {step}/{last}  {_numbers(row)}  left {left}")

    def print(self, text: str) -> None:
        assert self._rich is not None
        # Paths stay whole, and brackets are not markup.
        self._rich.print(
            text, soft_wrap=True, markup=False, emoji=False, highlight=text.startswith("step")
        )

    def finish(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _numbers(row: Row, *, room: int | None = None) -> str:
    """Return the numbers of a step: all of them, or the first ones that fit so many columns."""
    numbers = [
        f"loss {_short(row['loss'])}" if "loss" in row else "no loss",
        f"lr {row['learning_rate']:.3g}",
        f"grad norm {row['grad_norm']:.3g}",
        f"{row['step_seconds'] * 1e3:,.{0 if row['step_seconds'] > 0.1 else 1}f} ms/step",
        f"{row['tokens_per_second']:,.0f} tokens/s",
        f"{row['utilisation']:.0%} of peak",
    ]
    while room is not None and len(numbers) > 1 and len("  ".join(numbers)) > room:
        numbers.pop()
    return "  ".join(numbers)


def _short(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.4g}"


def progress_bar(console: "RichConsole") -> "Progress":
    """Return a bar of steps, with room for the numbers of the last one."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[numbers]}"),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
        console=console,
        expand=True,
        transient=True,
        speed_estimate_period=900.0,  # seconds; a step of a large model may take a minute
    )
