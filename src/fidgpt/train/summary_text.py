"""What is known of a run as text: the facts at its start, and the tables of its summary."""

import io
import shutil
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fidgpt.cost import PlaceCost
from fidgpt.train.facts import Facts, Summary, tokens_text
from fidgpt.train.footprint import Footprint
from fidgpt.train.run_directory import RunDirectory

UTILISATION = 0.4  # of the peak: what well-configured runs reach on GPUs
_SMALL = 0.001  # share below which a place is listed under others
_GROUPS = 12  # that are listed
_UNKNOWN = "unknown: the model needs the numbers of its tensors"
_COUNTS = ["", "k", "M", "B", "T"]
_FLOPS = ["", "k", "M", "G", "T", "P"]


def summary_text(summary: Summary, *, color: bool) -> str:
    """Format a summary as wide as the terminal.

    Args:
      summary: what is known.
      color: whether to use terminal styles.
    """
    width = max(80, min(shutil.get_terminal_size().columns, 120))
    console = Console(
        file=io.StringIO(), width=width, force_terminal=color, no_color=not color, highlight=False
    )
    with console.capture() as capture:
        console.print(_rows(_model(summary)), "", _place_table(summary.places), sep="\n")
        for note in _notes(summary):
            console.print(Text(note, style="dim"))
        for rows in (_groups(summary), _memory(summary.facts), _run(summary)):
            console.print("", _rows(rows), sep="\n")
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def _rows(rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(Text(name), Text(value, overflow="fold"))
    return table


def _model(summary: Summary) -> list[tuple[str, str]]:
    count, facts, cached = summary.parameters, summary.facts, _UNKNOWN
    if summary.cache is not None:
        token, context, seq_len = summary.cache
        cached = f"{bytes_text(token)} a token, {bytes_text(context)} for {seq_len:,}"
    rows = [("parameters", f"{count.total:,}{_in_words(count.total)}")]
    if facts.trained_parameters != count.total:
        rows.append(
            ("trained", f"{facts.trained_parameters:,}{_in_words(facts.trained_parameters)}")
        )
    if count.active != count.total:
        rows.append(("active for a token", f"{count.active:,}{_in_words(count.active)}"))
    rows += [
        ("in tables of tokens", f"{count.embedding:,}; {count.without_embedding:,} elsewhere"),
        ("shared", _shared(facts)),
        ("cache of generation", cached),
    ]
    return [*rows, ("begins with", facts.weights)] if facts.weights else rows


def _in_words(count: int) -> str:
    return f" ({magnitude(count, _COUNTS)})" if count >= 1000 else ""


def _place_table(places: Sequence[PlaceCost]) -> Table:
    """Return parameters and operations of every place, the small ones in one row."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("part", "", "parameters", "", "FLOPs a token", ""):
        side = "left" if len(table.columns) < 2 else "right"
        table.add_column(name, justify=side, no_wrap=True)
    parameters, flops = sum(p.parameters for p in places), sum(p.flops for p in places)

    def add(place: str, kind: str, count: int, operations: int, style: str | None = None) -> None:
        shares = [(count, parameters, _COUNTS), (operations, flops, _FLOPS)]
        cells = [
            (magnitude(part, units), f"{part / whole:.1%}") if part else ("", "")
            for part, whole, units in shares
        ]
        table.add_row(place, kind, *cells[0], *cells[1], style=style)

    others = [0, 0]
    for cost in places:
        if cost.parameters < _SMALL * parameters and cost.flops <= _SMALL * flops:
            others = [others[0] + cost.parameters, others[1] + cost.flops]
            continue
        kind = cost.kind if cost.count == 1 else f"{cost.count} x {cost.kind}"
        add(cost.place.removeprefix("blocks.*.") or "model", kind, cost.parameters, cost.flops)
        if cost.own and cost.linear:
            add("", "  its Linears", 0, cost.linear)
            add("", "  beside them", 0, cost.own)
    if any(others):
        add("others", "", others[0], others[1])
    add("all", "", parameters, flops, style="bold")
    return table


def _notes(summary: Summary) -> Iterator[str]:
    for place in summary.places:
        if place.measured:
            yield (
                f"{place.place}: {place.kind} does not declare its operations, so torch counted "
                f"{magnitude(place.measured, _FLOPS)}FLOP of its products (own_flops_per_token)."
            )
    if not summary.runs_without_memory:
        needs = _UNKNOWN.partition(": ")[2]
        yield f"Only Linears and own_flops_per_token are counted: {needs}."


def _groups(summary: Summary) -> list[tuple[str, str]]:
    """Return the rates, decays and contents of the optimizer's groups."""
    rows = [("optimizer's groups", "learning rate, weight decay, parameters")]
    for group in summary.groups[:_GROUPS]:
        settings = [
            "none" if x is None else f"{x:.3g}" for x in (group.learning_rate, group.weight_decay)
        ]
        numbers = f"{', '.join(settings)}, {magnitude(group.num_parameters, _COUNTS)}"
        rows.append((f"  {group.name}", f"{numbers}: {group.holds}"))
    left = len(summary.groups) - _GROUPS
    return [*rows, ("  ...", f"{counted(left, 'group')} more")] if left > 0 else rows


def _memory(facts: Facts) -> list[tuple[str, str]]:
    """Return what one device needs."""
    memory = facts.memory
    kept, passing = memory.activations or (None, None)
    sequences = counted(memory.num_sequences, "sequence")
    lasting = [
        ("memory of a device", f"{bytes_text(memory.peak)} at the peak{lack_text(facts)}"),
        ("  weights", bytes_text(memory.weights)),
        ("  copy that computes", bytes_text(memory.copy) if memory.copy else "none"),
        ("  optimizer", "unknown" if memory.optimizer is None else bytes_text(memory.optimizer)),
        ("  gradients", _gradients(memory)),
    ]
    if memory.average != 0:
        averaged = "unknown" if memory.average is None else bytes_text(memory.average)
        lasting.insert(-1, ("  average of the weights", averaged))
    if kept is None or passing is None:
        return [*lasting, ("  activations", _UNKNOWN)]
    return [
        *lasting,
        ("  activations", f"{bytes_text(kept)} of {sequences}"),
        ("  for a moment", f"{bytes_text(passing)} besides, such as logits"),
    ]


def _gradients(memory: Footprint) -> str:
    text = bytes_text(memory.gradients)
    if memory.full_gradients == memory.gradients:
        return text
    return f"{text}, and {bytes_text(memory.full_gradients)} as the optimizer steps"


def _run(summary: Summary) -> list[tuple[str, str]]:
    facts = summary.facts
    total = facts.tokens * facts.flops_per_token
    seconds = total / (UTILISATION * facts.peak_flops)
    return [
        ("tokens", tokens_text(facts)),
        ("tokens a parameter", f"{facts.tokens / max(facts.active_parameters, 1):.3g}"),
        ("FLOPs", f"{total:.3g} = {facts.flops_per_token:.3g} a token, forward and backward"),
        ("device", device_text(facts)),
        ("time", f"{duration(seconds)} at {UTILISATION:.0%} of that"),
    ]


def duration(seconds: int | float) -> str:
    """Format a time in a suitable unit: `3.2 hours`."""
    for unit, size in (("years", 31_557_600), ("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.{0 if seconds >= 100 * size else 1}f} {unit}"
    return "less than a second" if seconds < 1 else f"{seconds:.0f} seconds"


def facts_table(run: RunDirectory, facts: Facts, *, step: int) -> Table:
    """Return what will run and where it writes, as rows of a name and a value."""
    idle = facts.parameters - facts.active_parameters
    active = f", {facts.active_parameters:,} of them for a token" if idle else ""
    frozen = facts.parameters - facts.trained_parameters
    trained = f", {facts.trained_parameters:,} of them trained" if frozen else ""
    rows = [
        ("parameters", f"{facts.parameters:,}{active}{trained}"),
        ("shared parameters", _shared(facts)),
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
    return _rows(rows)


def _shared(facts: Facts) -> str:
    return ", ".join(" = ".join([a, *b]) for a, b in facts.shared.items()) or "none"


def device_text(facts: Facts) -> str:
    """Describe the devices: `8 x cuda, bfloat16, 7.91 PFLOP/s at best`."""
    processes = f"{facts.world_size} x " if facts.world_size > 1 else ""
    peak = magnitude(facts.peak_flops, ["", "k", "M", "G", "T", "P", "E"])
    return f"{processes}{facts.device}, {facts.precision}, {peak}FLOP/s at best"


def memory_text(facts: Facts) -> str:
    """Describe in short what a device needs."""
    memory = facts.memory
    share = "unknown" if memory.activations is None else bytes_text(sum(memory.activations))
    return (
        f"{bytes_text(memory.peak)} a device, "
        f"{share} of it activations of {counted(memory.num_sequences, 'sequence')}"
        f"{lack_text(facts)}"
    )


def lack_text(facts: Facts) -> str:
    """Describe what a device has if that is less than it needs; else empty."""
    there = facts.memory_there
    if there is None or facts.memory.peak <= there:
        return ""
    return f"; it has {bytes_text(there)} only"


def bytes_text(count: int) -> str:
    """Format bytes with three digits: `1.52 GB`."""
    return magnitude(count, ["B", "kB", "MB", "GB", "TB", "PB"])


def magnitude(count: int | float, units: Sequence[str]) -> str:
    """Format a number with three digits, in the largest unit that it reaches."""
    power = 0
    while float(f"{count:.3g}") >= 1000 and power < len(units) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {units[power]}".rstrip()


def counted(number: int, noun: str) -> str:
    """Format a count: `1 sequence`, `8 sequences`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
