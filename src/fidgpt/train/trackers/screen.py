"""What a run looks like on a terminal: the table of its facts, and the bar of its steps."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fidgpt.train.facts import Facts, tokens_text
from fidgpt.train.run_directory import RunDirectory

_SECONDS_SEEN = 900.0  # of steps, to tell what is left: a large model has one step in a minute


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
        speed_estimate_period=_SECONDS_SEEN,
    )


def facts_table(run: RunDirectory, facts: Facts, *, step: int) -> Table:
    """What will run and where it writes, as rows of a name and a value."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in _facts(run, facts, step):
        table.add_row(name, Text(value, overflow="fold"))
    return table


def _facts(run: RunDirectory, facts: Facts, step: int) -> list[tuple[str, str]]:
    shared = [" = ".join([name, *others]) for name, others in facts.shared.items()]
    idle = facts.parameters - facts.active_parameters
    active = f", {facts.active_parameters:,} of them for a token" if idle else ""
    frozen = facts.parameters - facts.trained_parameters
    trained = f", {facts.trained_parameters:,} of them trained" if frozen else ""
    rows = [
        ("parameters", f"{facts.parameters:,}{active}{trained}"),
        ("shared parameters", ", ".join(shared) or "none"),
        ("FLOPs per token", f"{facts.flops_per_token:.3g} (forward and backward)"),
        ("tokens", tokens_text(facts)),
        ("device", device_text(facts)),
        ("memory", memory_text(facts)),
        ("writes to", str(run.path)),
    ]
    if step:
        rows.append(("goes on after", f"step {step:,}"))
    elif facts.weights:
        rows.append(("begins with", facts.weights))
    return rows


def device_text(facts: Facts) -> str:
    """What a run computes on: `8 x cuda, bfloat16, 7.91 PFLOP/s at best`."""
    processes = f"{facts.world_size} x " if facts.world_size > 1 else ""
    peak = magnitude(facts.peak_flops, ["", "k", "M", "G", "T", "P", "E"])
    return f"{processes}{facts.device}, {facts.precision}, {peak}FLOP/s at best"


def memory_text(facts: Facts) -> str:
    """What a device needs, in short."""
    memory = facts.memory
    share = "unknown" if memory.activations is None else bytes_text(sum(memory.activations))
    return (
        f"{bytes_text(memory.peak)} a device, "
        f"{share} of it activations of {counted(memory.num_sequences, 'sequence')}"
        f"{lack_text(facts)}"
    )


def lack_text(facts: Facts) -> str:
    """What a device has where that is less than it needs; "" where it suffices."""
    there = facts.memory_there
    if there is None or facts.memory.peak <= there:
        return ""
    return f"; it has {bytes_text(there)} only"


def bytes_text(count: int) -> str:
    """A number of bytes with three digits: `1.52 GB`."""
    return magnitude(count, ["B", "kB", "MB", "GB", "TB", "PB"])


def magnitude(count: int | float, units: Sequence[str]) -> str:
    """A number with three digits, in the largest of units a thousand apart that it reaches."""
    power = 0
    while float(f"{count:.3g}") >= 1000 and power < len(units) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {units[power]}".rstrip()


def counted(number: int, noun: str) -> str:
    """`1 sequence`, `8 sequences`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
