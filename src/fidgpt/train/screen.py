"""What a run looks like on a terminal: the table of its facts, and the bar of its steps."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fidgpt.train.facts import Facts
from fidgpt.train.run import RunDirectory


def progress_bar(console: Console) -> Progress:
    """A bar of steps, with room for the numbers of the last one."""
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
        table.add_row(name, Text(value, overflow="fold"))
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
