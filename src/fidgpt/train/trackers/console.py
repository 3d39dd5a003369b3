"""What a person sees of a run: what will happen, how far it is, and what came out."""

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from fidgpt.train.facts import Facts
from fidgpt.train.run_directory import RunDirectory
from fidgpt.train.trackers.trackers import Row

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import Progress, TaskID


_LINES_WITHOUT_A_TERMINAL = 20
_LONG = 1e6  # a loss from which on powers of ten are shorter
_WIDTH_WITHOUT_A_TERMINAL = 1000  # nothing is there to be filled, and a path stays in one piece


class Console:
    """A table of facts, then a progress bar; on a pipe or in a log, a line now and then."""

    def __init__(self) -> None:
        self._rich: RichConsole | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._facts: Facts | None = None
        self._begun_at, self._num_rows = 0.0, 0

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        from rich.console import Console as RichConsole  # late: most who import this train nothing

        from fidgpt.train.trackers.screen import facts_table, progress_bar

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
        if values := {key: row[key] for key in row if self._is_evaluated(key)}:
            shown = "  ".join(f"{key.replace('_', ' ')} {_short(values[key])}" for key in values)
            self.print(f"step {row['step']}: {shown}")
        for text in row.get("samples", ()):
            self.print(f"step {row['step']} writes: {text}")
        if row.get("skipped"):
            self.print(
                f"step {row['step']} is left out: loss {_short(row['loss'])}, gradient norm "
                f"{row['grad_norm']:.4g}"
            )
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=row["step"], numbers=_numbers(row))
        elif _is_time(row["step"], self._facts.num_steps):
            self._rich.print(
                f"step {row['step']}/{self._facts.num_steps}  {_numbers(row)}  "
                f"left {self._left(row['step'])}"
            )

    def print(self, text: str) -> None:
        assert self._rich is not None
        # A path is to be copied whole, and brackets are no markup.
        self._rich.print(text, soft_wrap=True, markup=False, emoji=False)

    def _is_evaluated(self, key: str) -> bool:
        assert self._facts is not None
        return key.partition("/")[0] in self._facts.evaluators

    def _left(self, step: int) -> str:
        """Hours, minutes and seconds that the rest takes at the pace since the run was begun."""
        assert self._facts is not None
        # Of rows, not up to the step: a run that diverged may go back to before it was begun.
        pace = (time.monotonic() - self._begun_at) / self._num_rows
        return str(timedelta(seconds=round(pace * (self._facts.num_steps - step))))

    def finish(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _is_time(step: int, num_steps: int) -> bool:
    every = max(1, num_steps // _LINES_WITHOUT_A_TERMINAL)
    return step == 1 or step == num_steps or step % every == 0


def _numbers(row: Row) -> str:
    return (
        f"loss {_short(row['loss'])}  {row['tokens_per_second']:,.0f} tokens/s  "
        f"{row['utilisation']:.0%} of peak"
    )


def _short(value: float) -> str:
    return f"{value:.4f}" if abs(value) < _LONG else f"{value:.4g}"
