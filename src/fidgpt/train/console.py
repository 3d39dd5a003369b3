"""What a person sees of a run: what will happen, how far it is, and what came out."""

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fidgpt.train.facts import Facts
from fidgpt.train.run import RunDirectory
from fidgpt.train.trackers import Row

_LINES_WITHOUT_A_TERMINAL = 20


class Console:
    """A table of facts, then a progress bar; on a pipe or in a log, a line now and then."""

    def __init__(self) -> None:
        self._rich: RichConsole | None = None
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._facts: Facts | None = None

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        self._facts = facts
        self._rich = RichConsole(highlight=False)
        self._rich.print(facts_table(run, facts, step=step))
        if self._rich.is_terminal:
            self._progress = _progress_bar(self._rich)
            self._task = self._progress.add_task(
                "", total=facts.num_steps, completed=step, numbers=""
            )
            self._progress.start()

    def log(self, row: Row) -> None:
        assert self._rich is not None and self._facts is not None
        if "validation/loss" in row or any(key.endswith("/bits_per_byte") for key in row):
            self.say(_evaluated(row))
        if self._progress is not None:
            self._progress.update(self._task, completed=row["step"], numbers=_numbers(row))
        elif _is_time(row["step"], self._facts.num_steps):
            self._rich.print(f"step {row['step']}/{self._facts.num_steps}  {_numbers(row)}")

    def say(self, text: str) -> None:
        assert self._rich is not None
        self._rich.print(Text(text), soft_wrap=True)  # a path is to be copied whole

    def finish(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _is_time(step: int, num_steps: int) -> bool:
    every = max(1, num_steps // _LINES_WITHOUT_A_TERMINAL)
    return step == 1 or step == num_steps or step % every == 0


def _numbers(row: Row) -> str:
    return (
        f"loss {row['loss']:.4f}  {row['tokens_per_second']:,.0f} tokens/s  "
        f"{row['utilisation']:.0%} of peak"
    )


def _evaluated(row: Row) -> str:
    values = {key: value for key, value in row.items() if "/" in key}
    shown = "  ".join(f"{key.replace('_', ' ')} {value:.4f}" for key, value in values.items())
    return f"step {row['step']}: {shown}"


def _progress_bar(console: RichConsole) -> Progress:
    return Progress(
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[numbers]}"),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
        console=console,
        expand=True,
    )


def facts_table(run: RunDirectory, facts: Facts, *, step: int) -> Table:
    """What will run and where it writes, as rows of a name and a value."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in _facts(run, facts, step):
        table.add_row(name, Text(value))
    return table


def _facts(run: RunDirectory, facts: Facts, step: int) -> list[tuple[str, str]]:
    shared = [" = ".join([name, *others]) for name, others in facts.shared.items()]
    processes = f"{facts.world_size} x " if facts.world_size > 1 else ""
    rows = [
        ("parameters", f"{facts.parameters:,}"),
        ("shared parameters", ", ".join(shared) or "none"),
        ("FLOPs per token", f"{facts.flops_per_token:.3g} (forward and backward)"),
        ("tokens", f"{facts.tokens:,} = {facts.num_steps:,} steps of {facts.tokens_per_step:,}"),
        (
            "device",
            f"{processes}{facts.device}, {facts.precision}, "
            f"{facts.peak_flops / 1e12:.3g} TFLOP/s at best",
        ),
        ("writes to", str(run.path)),
    ]
    if step:
        rows.append(("goes on after", f"step {step:,}"))
    return rows
