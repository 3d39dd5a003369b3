"""A summary as text: tables of where the cost of a run is, and of what it needs."""

import io
import shutil
from collections.abc import Iterator, Sequence
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fidgpt.cost import PlaceCost
from fidgpt.train.facts import CacheSize, Facts, Summary, tokens_text
from fidgpt.train.footprint import Footprint
from fidgpt.train.trackers.screen import bytes_text, counted, device_text, lack_text, magnitude

UTILISATION = 0.4  # of the peak: what a run reaches on GPUs that is set up well
_SMALL = 0.001  # share below which a place is one of the others
_GROUPS = 12  # that are listed
_BECAUSE = "the model needs the numbers of its tensors"
_UNKNOWN = f"unknown: {_BECAUSE}"
_COUNTS = ["", "k", "M", "B", "T"]
_FLOPS = ["", "k", "M", "G", "T", "P"]


def summary_text(summary: Summary, *, color: bool) -> str:
    """All of a summary, as wide as the terminal.

    Args:
      summary: what is known.
      color: dims and emboldens, for a terminal.
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
    count, facts = summary.parameters, summary.facts
    rows = [("parameters", f"{count.total:,}{_in_words(count.total)}")]
    if facts.trained_parameters != count.total:
        rows.append(
            ("trained", f"{facts.trained_parameters:,}{_in_words(facts.trained_parameters)}")
        )
    if count.active != count.total:
        rows.append(("active for a token", f"{count.active:,}{_in_words(count.active)}"))
    rows += [
        ("in tables of tokens", f"{count.embedding:,}; {count.without_embedding:,} elsewhere"),
        ("shared", ", ".join(" = ".join([a, *b]) for a, b in facts.shared.items()) or "none"),
        ("cache of generation", _cache(summary.cache)),
    ]
    return [*rows, ("begins with", facts.weights)] if facts.weights else rows


def _in_words(count: int) -> str:
    return f" ({magnitude(count, _COUNTS)})" if count >= 1000 else ""


def _cache(cache: CacheSize | None) -> str:
    if cache is None:
        return _UNKNOWN
    return f"{bytes_text(cache.token)} a token, {bytes_text(cache.context)} for {cache.seq_len:,}"


def _place_table(places: Sequence[PlaceCost]) -> Table:
    """Parameters and operations of every place, the small ones in one row."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("part", "", "parameters", "", "FLOPs a token", ""):
        side = "left" if len(table.columns) < 2 else "right"
        table.add_column(name, justify=side, no_wrap=True)
    parameters, flops = _sums(places)
    count_shares = partial(_shares, whole=parameters, units=_COUNTS)
    flop_shares = partial(_shares, whole=flops, units=_FLOPS)
    others = [p for p in places if _is_small(p, parameters, flops)]
    shown = [(_name(p), _kind(p), p) for p in places if p not in others]
    for place, kind, cost in shown:
        table.add_row(place, kind, *count_shares(cost.parameters), *flop_shares(cost.flops))
        if cost.own and cost.linear:
            table.add_row("", "  its Linears", "", "", *flop_shares(cost.linear))
            table.add_row("", "  beside them", "", "", *flop_shares(cost.own))
    if others:
        count, operations = _sums(others)
        table.add_row("others", "", *count_shares(count), *flop_shares(operations))
    table.add_row("all", "", *count_shares(parameters), *flop_shares(flops), style="bold")
    return table


def _sums(places: Sequence[PlaceCost]) -> tuple[int, int]:
    """Parameters and operations of some places together."""
    return sum(place.parameters for place in places), sum(place.flops for place in places)


def _is_small(cost: PlaceCost, parameters: int, flops: int) -> bool:
    return cost.parameters < _SMALL * parameters and cost.flops <= _SMALL * flops


def _name(cost: PlaceCost) -> str:
    return cost.place.removeprefix("blocks.*.") or "model"


def _kind(cost: PlaceCost) -> str:
    return cost.kind if cost.count == 1 else f"{cost.count} x {cost.kind}"


def _shares(part: int, *, whole: int, units: Sequence[str]) -> tuple[str, str]:
    """A part in itself and of the whole; nothing where it is nothing."""
    return (magnitude(part, units), f"{part / whole:.1%}") if part else ("", "")


def _notes(summary: Summary) -> Iterator[str]:
    for place in summary.places:
        if place.measured:
            yield (
                f"{place.place}: {place.kind} does not say what it computes, so torch counted "
                f"{magnitude(place.measured, _FLOPS)}FLOP of its products (own_flops_per_token)."
            )
    if not summary.runs_without_memory:
        yield f"Only what Linears and own_flops_per_token say is counted: {_BECAUSE}."


def _groups(summary: Summary) -> list[tuple[str, str]]:
    """What the optimizer treats alike, at which rate, and what that holds."""
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
    """What one device needs."""
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
    """A time in the unit that suits it: `3.2 hours`."""
    for unit, size in (("years", 31_557_600), ("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.{0 if seconds >= 100 * size else 1}f} {unit}"
    return "less than a second" if seconds < 1 else f"{seconds:.0f} seconds"
