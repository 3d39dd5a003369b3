"""What is known of a run as text: facts at its start, tables of its summary, and schedules."""

import contextlib
import io
import itertools
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fidgpt.cost import NEEDS_NUMBERS, PlaceCost, cache_bytes, cost_by_place, without_memory
from fidgpt.plan import Plan
from fidgpt.recording import Sent
from fidgpt.schedule import Schedule
from fidgpt.train.estimates.facts import Facts, GroupFacts, Recipe, parameter_groups, tokens_text
from fidgpt.train.estimates.tuning import Choice, Speeds
from fidgpt.train.run_directory import RunDirectory

_SMALL = 0.001  # share below which a place is listed under others
_GROUPS = 12  # that are listed
_UNKNOWN = "unknown: the model needs the numbers of its tensors"
_COUNTS = ["", "k", "M", "B", "T"]
_FLOPS = ["", "k", "M", "G", "T", "P"]
Rows = list[tuple[str, str]]


def summary_text(run: Recipe, facts: Facts, *, recipe: str = "", color: bool) -> str:
    """Format what is known of a run as wide as the terminal.

    Args:
      run: the run; the model may be on the meta device.
      facts: of the run.
      recipe: what the named config says of itself.
      color: whether to use terminal styles.
    """
    width = max(80, min(shutil.get_terminal_size().columns, 120))
    places = cost_by_place(run.model, facts.forward)
    shown: list[RenderableType] = [table_of(_model(run, facts)), "", _place_table(places)]
    if not facts.forward.is_executed:
        note = f"Operations are two for each weight that is used: {_UNKNOWN.partition(': ')[2]}."
        shown.append(Text(note, style="dim"))
    for rows in (
        _groups(parameter_groups(run)),
        *([_pipeline(facts.plan)] if len(facts.plan.memory) > 1 else []),
        *([_collectives(facts.collectives)] if any(facts.collectives) else []),
        memory_rows(facts),
        [*_run(facts), *([("recipe", recipe)] if recipe else [])],
    ):
        shown += ["", table_of(rows)]
    return rendered(shown, width=width, color=color)


def rendered(shown: Sequence[RenderableType], *, width: int, color: bool) -> str:
    """Format tables and lines."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=color, no_color=not color, highlight=False
    )
    with console.capture() as capture:
        for part in shown:
            console.print(part, soft_wrap=isinstance(part, str))
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def speed_text(choice: Choice | None, *, color: bool) -> str:
    """Format what was measured for the choice of number format and attention, and the choice.

    Args:
      choice: what was chosen; None if nothing was.
      color: whether to use terminal styles.
    """
    if choice is None:
        return (
            "Nothing is measured for this config: it sets precision and compilation itself, or the "
            "run is too short to gain by it, or the model too large.\n"
        )
    tables = [_speeds(kind, speeds) for kind, speeds in choice.measured.items()]
    note = Text("Without the optimizer's part of a step.", style="dim")
    parts = [part for table in tables for part in (table, "")] + [note] * bool(tables)
    return rendered([*parts, f"Chosen: {choice.reason}."], width=100, color=color)


def _speeds(kind: str, speeds: Speeds) -> Table:
    table = table_under((kind, "ms a step", "in products", "compiled (estimate)", "times"))
    first = next(iter(speeds.seconds.values()))
    for name, whole in speeds.seconds.items():
        seconds = (whole, speeds.products[name], speeds.compiled(name))
        table.add_row(name, *(f"{1e3 * number:,.1f}" for number in seconds), f"{first / whole:.2f}")
    return table


def table_under(
    names: Sequence[str], *, left: Sequence[int] = (0,), gap: int = 2, no_wrap: bool = True
) -> Table:
    """Return a table without rows, under names of columns.

    Args:
      names: of the columns.
      left: indices of columns with text, whose cells begin on the left.
      gap: spaces after a column.
      no_wrap: whether cells stay on one line.
    """
    table = Table(box=None, padding=(0, gap, 0, 0), header_style="bold")
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index in left else "right", no_wrap=no_wrap)
    return table


def table_of(rows: Rows) -> Table:
    """Return a table of names and values."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(Text(name), Text(value, overflow="fold"))
    return table


def _model(run: Recipe, facts: Facts) -> Rows:
    count, cached = facts.parameters, _UNKNOWN
    replica = run.precision.replica(without_memory(run.model)).eval()
    with contextlib.suppress(*NEEDS_NUMBERS):
        token, text = (cache_bytes(replica, context=size) for size in (1, run.seq_len))
        cached = f"{bytes_text(token)} per token, {bytes_text(text)} for {run.seq_len:,}"
    return [
        *_parameters(facts),
        ("token embeddings", f"{count.embedding:,}; {count.without_embedding:,} elsewhere"),
        ("KV cache", cached),
    ]


def _parameters(facts: Facts) -> Rows:
    """Return rows for the parameters, and for what happens to them at the start and on a mesh."""
    total = facts.parameters.total
    parts = {"trained": facts.trained_parameters, "active for a token": facts.parameters.active}
    return [
        ("parameters", _number_text(total)),
        *((name, _number_text(part)) for name, part in parts.items() if part != total),
        ("shared", ", ".join(" = ".join([a, *b]) for a, b in facts.shared.items()) or "none"),
        *_on_meshes(facts),
        *([("starts from", facts.weights)] if facts.weights else []),
    ]


def _number_text(count: int) -> str:
    return f"{count:,}" + (f" ({magnitude(count, _COUNTS)})" if count >= 1000 else "")


def _place_table(places: Sequence[PlaceCost]) -> Table:
    """Return parameters and operations of every place, the small ones in one row."""
    names = ("part", "", "parameters", "", "FLOPs/token", "")
    table = table_under(names, left=(0, 1), gap=1)
    parameters, flops = sum(p.parameters for p in places), sum(p.flops.total for p in places)

    def add(
        place: str, kind: str, count: int, operations: int | float, style: str | None = None
    ) -> None:
        shares = [(count, parameters, _COUNTS), (operations, flops, _FLOPS)]
        cells = [
            (magnitude(part, units), f"{part / whole:.1%}") if part else ("", "")
            for part, whole, units in shares
        ]
        table.add_row(place, kind, *cells[0], *cells[1], style=style)

    others = [0, 0]
    for cost in places:
        if cost.parameters < _SMALL * parameters and cost.flops.total <= _SMALL * flops:
            others = [others[0] + cost.parameters, others[1] + cost.flops.total]
            continue
        kind = cost.kind if cost.count == 1 else f"{cost.count} x {cost.kind}"
        add(
            cost.place.removeprefix("blocks.*.") or "model", kind, cost.parameters, cost.flops.total
        )
        if cost.flops.products and cost.flops.attention:
            add("", "  matrix products", 0, cost.flops.products)
            add("", "  scores and values", 0, cost.flops.attention)
    if any(others):
        add("others", "", others[0], others[1])
    add("all", "", parameters, flops, style="bold")
    return table


def _groups(groups: Sequence[GroupFacts]) -> Rows:
    """Return the rates, decays and contents of the optimizer's groups."""
    rows = [("optimizer's groups", "learning rate, weight decay, parameters")]
    for group in groups[:_GROUPS]:
        settings = [
            "none" if x is None else f"{x:.3g}" for x in (group.learning_rate, group.weight_decay)
        ]
        numbers = f"{', '.join(settings)}, {magnitude(group.num_parameters, _COUNTS)}"
        rows.append((f"  {group.name}", f"{numbers}: {group.holds}"))
    left = len(groups) - _GROUPS
    return [*rows, ("  ...", f"{counted(left, 'group')} more")] if left > 0 else rows


def _pipeline(plan: Plan) -> Rows:
    """Return layers, operations and memory of each process of a pipeline."""
    rows = [("pipeline", f"processes wait for {plan.bubble / plan.step:.1%} of a step (bubble)")]
    ranks = zip(plan.layers, plan.flops, plan.memory, strict=True)
    for rank, (stages, flops, memory) in enumerate(ranks):
        layers = ", ".join(f"{b}..{e - 1}" if b < e else "none" for b, e in stages)
        text = f"layers {layers}: {flops:.1%} of the FLOPs, {bytes_text(int(memory.total))}"
        rows.append((f"  stages of {rank}", text))
    return rows


COLLECTIVES = {
    "gather": "all-gather",
    "scatter": "reduce-scatter",
    "reduce": "all-reduce",
    "exchange": "all-to-all",
    "send": "send",
    "share": "broadcast",
}


def _collectives(processes: Sequence[Counter[Sent]]) -> Rows:
    """Return what the process that sends most sends in a step, by axis and kind."""
    sizes = [sum(one.bytes * number for one, number in sent.items()) for sent in processes]
    most = max(range(len(sizes)), key=sizes.__getitem__)
    title = f"most on stages of {most}: " if len(sizes) > 1 else ""
    rows = [("collectives per step", f"{title}number, bytes of whole tensors")]
    axes: dict[str, dict[str, tuple[int, int]]] = {}
    for one, number in processes[most].items():
        kinds = axes.setdefault(one.axis, {})
        count, size = kinds.get(one.kind, (0, 0))
        kinds[one.kind] = count + number, size + one.bytes * number
    for axis, kinds in axes.items():
        texts = [
            f"{counted(number, COLLECTIVES[kind])}, {bytes_text(size)}"
            for kind, (number, size) in kinds.items()
        ]
        rows.append((f"  {axis}", "; ".join(texts)))
    return rows


def memory_rows(facts: Facts) -> Rows:
    """Return what one device needs, and main memory for checkpoints, if it holds any."""
    when = ", as the optimizer steps" if facts.memory.freed else ""
    there = bytes_text(int(facts.cluster.device.memory))
    lack = "" if facts.plan.fits else f"; it has {there} only"
    peak = f"{bytes_text(int(facts.plan.peak))} at the peak{when}{lack}"
    copies = f"{bytes_text(facts.copies)} of main memory per machine"
    return [
        ("memory per device", peak),
        *kinds_of_memory(facts.plan),
        *([("checkpoints in memory", copies)] if facts.copies else []),
    ]


def kinds_of_memory(plan: Plan) -> Rows:
    """Return what the memory of a device holds at the peak."""
    memory = plan.memory[plan.worst]
    sizes = {kind.name: getattr(memory, kind.name) for kind in fields(memory)}
    sizes["activations"] += sizes.pop("freed")
    before = ", freed before the peak" if memory.freed else ""
    rows_text = counted(plan.sequences, "sequence")
    of = {"activations": f" of {rows_text}{before}"}
    rows = [
        (f"  {name}", f"{bytes_text(int(size))}{of.get(name, '')}")
        for name, size in sizes.items()
        if size >= 1
    ]
    return rows if plan.is_executed else [*rows, ("  activations", _UNKNOWN)]


def _run(facts: Facts) -> Rows:
    total = facts.tokens * facts.flops_per_token
    plan = facts.plan
    return [
        ("tokens", tokens_text(facts)),
        ("tokens/parameter", f"{facts.tokens / max(facts.parameters.active, 1):.3g}"),
        ("FLOPs", f"{total:.3g} = {facts.flops_per_token:.3g} per token, forward and backward"),
        ("device", _device_text(facts)),
        ("time", f"{duration(plan.days * 86400)}, {plan.step:.3g} s a step (--print=plan)"),
    ]


def facts_table(run: RunDirectory, facts: Facts, *, step: int) -> Table:
    """Return what will run and where it writes, as rows of a name and a value."""
    rows = [*_parameters(facts), *_run(facts), *memory_rows(facts), ("writes to", str(run.path))]
    return table_of([*rows, ("resumes after", f"step {step:,}")] if step else rows)


def _on_meshes(facts: Facts) -> list[tuple[str, str]]:
    """Return rows for modules that no axis divides, and for dropout unlike one process's."""
    whole, drops = ", ".join(facts.undivided), "other elements than in one process"
    rows = [("computed whole", whole)] if whole else []
    return rows if facts.dropout_matches_one_process else [*rows, ("dropout", drops)]


def _device_text(facts: Facts) -> str:
    """Describe the devices: `8 x cuda, bfloat16, 7.91 PFLOP/s at best`."""
    size = facts.cluster.size
    processes = f"{size} x " if size > 1 else ""
    peak = magnitude(facts.peak_flops, [*_FLOPS, "E"])
    return f"{processes}{facts.cluster.device.kind}, {facts.precision}, {peak}FLOP/s at best"


def duration(seconds: int | float) -> str:
    """Format a time in a suitable unit: `3.2 hours`."""
    for unit, size in (("years", 31_557_600), ("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.{0 if seconds >= 100 * size else 1}f} {unit}"
    return "less than a second" if seconds < 1 else f"{seconds:.0f} seconds"


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


_HEIGHT = 10
_BLOCKS = " ▁▂▃▄▅▆▇█"


def schedules_text(run: Recipe) -> str:
    """Draw the learning rate, the settings of groups that change, and curves of the data."""
    groups, steps = parameter_groups(run), range(run.num_steps)
    peaks = [(group.name, group.learning_rate or 1.0) for group in groups]
    drawings = [schedule_text(run.schedule, num_steps=run.num_steps, peaks=peaks)]
    for name, other in (run.schedules or {}).items():
        # Shown for the first group that has something to change.
        held = [(group.name, group.settings[name]) for group in groups if group.settings.get(name)]
        where, peak = held[0] if held else ("every group", 1.0)
        values = [other(step) * peak for step in steps]
        drawings.append(curve_text(f"{name.replace('_', ' ')} of {where}", values))
    drawings += [curve_text(*curve) for curve in run.stream.curves(run.num_steps).items()]
    return "\n\n".join(drawings)


def schedule_text(
    schedule: Schedule, *, num_steps: int, peaks: Sequence[tuple[str, float]], width: int = 80
) -> str:
    """Draw the learning rate of a run.

    Args:
      schedule: multiplier of the peak.
      num_steps: steps of the run.
      peaks: names of parameter groups and their peak rates; the first one's is drawn.
      width: columns of the drawing.
    """
    (name, peak), *others = peaks
    values = [schedule(step) * peak for step in range(num_steps)]
    scaled = [
        f"{other}: {rate / peak:.3g} times as much\n" for other, rate in others if rate != peak
    ]
    return "".join([curve_text(f"learning rate of {name}", values, width=width), *scaled])


def curve_text(name: str, values: Sequence[float], *, width: int = 80) -> str:
    """Draw what changes over the steps of a run, with its first, largest and last value."""
    title = f"{name} over {len(values):,} steps"
    ends = f"from {values[0]:.6g} to {values[-1]:.6g}, at most {max(values):.6g}"
    return "".join(f"{line.rstrip()}\n" for line in [title, "", *_drawing(values, width), "", ends])


def _drawing(values: Sequence[float], width: int) -> list[str]:
    """Draw a filled curve above an axis of steps; each column is the mean of its steps."""
    top = max(*values, 0.0)
    labels = [f"{top:.3g}", f"{top / 2:.3g}", "0"]
    margin = max(map(len, labels)) + 1
    parts = [max(0.0, value) / top if top > 0 else 0.0 for value in values]
    count = width - margin - 2
    edges = [column * len(parts) // count for column in range(count + 1)]
    columns = [parts[first : max(first + 1, last)] for first, last in itertools.pairwise(edges)]
    heights = [round(8 * _HEIGHT * sum(part) / len(part)) for part in columns]
    lines = []
    for row in reversed(range(_HEIGHT)):
        label = {_HEIGHT - 1: labels[0], _HEIGHT // 2 - 1: labels[1]}.get(row, "")
        drawn = "".join(_BLOCKS[min(8, max(0, height - 8 * row))] for height in heights)
        lines.append(f"{label:>{margin}} {'┤' if label else '│'}{drawn}")
    last = f"{len(values):,}"
    axis = f"{'1':<{count - len(last)}}{last}"
    return [*lines, f"{labels[2]:>{margin}} └{'─' * count}", f"{'':>{margin + 2}}{axis}"]
