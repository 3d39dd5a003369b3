"""Plans as texts, and as a page for a browser: memory against speed, and the timeline of a step."""

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fidgpt.plan import Plan, Planner, Ranking, Setting, Variant, recompute_words
from fidgpt.train.estimates.summary_text import (
    bytes_text,
    counted,
    duration,
    kinds_of_memory,
    rendered,
    table_of,
    table_under,
)

_SHOWN, _COMMANDS, _VARIANTS, _DRAWN = 12, 3, 8, 200
_WHOLE = 100  # days, from which they are shown without decimals
_DIRECTIVES = {
    "none": "set:model.recompute=None",
    "selective": "fiddler:use_selective_recompute",
    "full": "fiddler:use_recompute",
}


def plan_text(planner: Planner, plan: Plan, *, price: float | None, color: bool) -> str:
    """Format the plan of a run on its mesh.

    Args:
      planner: that made it.
      plan: of the run.
      price: of a device for an hour; None if it is not known.
      color: whether to use terminal styles.
    """
    setting, cluster = plan.setting, plan.cluster
    device = plan.cluster.device
    verdict = "fits" if plan.fits else "does not fit"
    of = f" on process {plan.worst} of the pipeline, the worst" if len(plan.memory) > 1 else ""
    waits = {name: seconds for name, seconds in plan.seconds.hidden.items() if seconds > 0}
    rows = [
        ("devices", f"{cluster.size} x {device.title}, {_basis(planner)}"),
        ("mesh", str(setting.mesh)),
        (
            "micro-batches",
            f"{setting.num_micro_batches} of {counted(plan.sequences, 'sequence')}",
        ),
        ("memory", f"{bytes_text(int(plan.peak))}{of}: {verdict} {bytes_text(int(device.memory))}"),
        *kinds_of_memory(plan),
        ("seconds a step", f"{plan.step:.4g}, bound by {plan.bound}"),
        *((f"  {name}", _share(seconds, plan.step)) for name, seconds in plan.kinds().items()),
        *((f"  {name}, hidden", f"{s:.3g}") for name, s in waits.items()),
        *_result(plan, price),
    ]
    shown: list[RenderableType] = [table_of(rows)]
    if variants := planner.variants(plan)[:_VARIANTS]:
        shown += ["", _variants(plan, variants)]
    return rendered(shown, width=110, color=color)


def plans_text(
    ranking: Ranking,
    planner: Planner,
    *,
    start: str,
    price: float | None,
    color: bool,
) -> str:
    """Format the plans of all meshes, the fastest of those that fit first.

    Args:
      ranking: as `Planner.search` returns it.
      planner: that made them.
      start: the command of the run on a single device.
      price: of a device for an hour; None if it is not known.
      color: whether to use terminal styles.
    """
    plans, cluster, meshes = ranking.plans, planner.cluster, ranking.num_meshes
    fitting = [plan for plan in plans if plan.fits]
    head = (
        f"{cluster.size} x {cluster.device.title}, {_basis(planner)}: "
        f"{meshes} {'mesh' if meshes == 1 else 'meshes'}, "
        f"{counted(ranking.num_settings, 'setting')}, of which {len(fitting)} fit."
    )
    shown: list[RenderableType] = [Text(head)]
    if not fitting:
        shown += [Text(nothing_fits(plans))]
    names = ["", "mesh", "micro-batch", "recompute", "gathers", "memory", "s/step"]
    names += ["tokens/s/device", "MFU", "bound by", "days", *(["price"] if price else [])]
    table = table_under(names, left=(1, 9), no_wrap=False)
    listed = (fitting or list(plans))[:_SHOWN]
    for number, plan in enumerate(listed, start=1):
        table.add_row(str(number), *_cells(plan, planner, price))
    tabled = rendered([*shown, "", table], width=200, color=color)
    commands = [  # in one line each, however wide, so that they can be copied
        f"{number}: {command(plan.setting, planner, start)}"
        for number, plan in enumerate(listed[: _COMMANDS if fitting else 1], start=1)
    ]
    return "\n".join([tabled, *commands, ""])


def nothing_fits(plans: Sequence[Plan]) -> str:
    """Return the line that says that no plan fits, and what would."""
    least = min(plans, key=lambda plan: plan.peak)
    size, device, memory = least.cluster.size, least.cluster.device, least.memory[least.worst]
    fixed = memory.temporary + memory.communication  # which more devices do not share
    remedy = "Lower seq_len, batch_size or the size of the model."
    if fixed < device.memory:
        number = size * 2 ** math.ceil(math.log2((least.peak - fixed) / (device.memory - fixed)))
        remedy = (
            f"About {number} such devices would do: --hardware={device.name}x{number}; or lower "
            "seq_len, batch_size or the size of the model."
        )
    return (
        f"Nothing fits: the least is {bytes_text(int(least.peak))} per device, "
        f"{least.peak / device.memory:.1f} times what it has, with {least.setting.mesh}. {remedy}"
    )


def command(setting: Setting, planner: Planner, start: str) -> str:
    """Return the command that runs a setting; `start` runs the config on a single device."""
    sizes = [f"{n}={s}" for n, s in setting.mesh.sizes.items() if s != 1]
    changes = [f"'fiddler:use_mesh({', '.join(sizes)})'"] if sizes else []
    if setting.mesh.sizes.get("tensor", 1) > 1 and not planner.has_part("tensor"):
        changes.append("fiddler:use_sequence_parallel")
    if not setting.reshards and planner.recipe.parallel.reshards:
        changes.append("fiddler:use_zero2")
    if setting.micro_batch != planner.recipe.micro_batch_size:
        changes.append(f"'fiddler:set_micro_batch_size(size={setting.micro_batch})'")
    if setting.recompute and setting.recompute != planner.recompute:
        changes.append(_DIRECTIVES[setting.recompute])
    line = " ".join([start, *(f"--config={change}" for change in changes)])
    size, each = planner.cluster.size, planner.cluster.device.per_machine
    if size == 1:
        return line
    nodes = f"--nnodes={-(-size // each)} " if size > each else ""
    script = line.removeprefix("python ") if line.startswith("python ") else f"-m {line}"
    return f"torchrun {nodes}--nproc-per-node={min(size, each)} {script}"


def _basis(planner: Planner) -> str:
    cluster, dtype = planner.cluster, planner.training.dtype
    peak = cluster.device.peak(dtype) / 1e12
    source = "not calibrated: products measured now" if cluster.device.kind == "cpu" else ""
    source = source or "not calibrated: from its data sheet"
    source = f"measured: {cluster.measured}" if cluster.measured else source
    return f"{dtype}, {peak:,.4g} TFLOP/s each, {source}"


def _share(seconds: float, step: float) -> str:
    return f"{seconds:.3g} ({seconds / step:.1%})"


def _result(plan: Plan, price: float | None) -> list[tuple[str, str]]:
    rows = [
        ("tokens a second", f"{plan.tokens_per_second:,.4g} on each device"),
        ("MFU", f"{plan.utilisation:.1%}"),
        ("time", duration(plan.days * 86400)),
    ]
    if price:
        rows.append(("price", f"{plan.hours * price:,.2f} for {plan.hours:,.1f} device-hours"))
    return rows


def _variants(plan: Plan, variants: Sequence[Variant]) -> Table:
    table = table_under(("change", "seconds a step", "", "memory", ""))
    for variant in variants:
        other = variant.plan
        table.add_row(
            variant.change,
            f"{other.step:.4g}",
            f"{other.step / plan.step - 1:+.0%}",
            bytes_text(int(other.peak)),
            "fits" if other.fits else "does not fit",
        )
    return table


def _cells(plan: Plan, planner: Planner, price: float | None) -> list[str]:
    setting = plan.setting
    cells = [
        str(setting.mesh),
        f"{setting.num_micro_batches} x {setting.micro_batch}",
        setting.recompute or planner.recompute or "as it is",
        ("each pass" if setting.reshards else "once") if setting.mesh.num_shards > 1 else "",
        bytes_text(int(plan.peak)),
        f"{plan.step:.4g}",
        f"{plan.tokens_per_second:,.4g}",
        f"{plan.utilisation:.1%}",
        plan.bound,
        f"{plan.days:,.0f}" if plan.days >= _WHOLE else f"{plan.days:.3g}",
    ]
    return [*cells, f"{plan.hours * price:,.2f}"] if price else cells


_WIDTH, _HEIGHT, _MARGIN = 900, 460, 84


def page(ranking: Ranking, planner: Planner, start: str, *, title: str) -> str:
    """Return a page of plans, which needs nothing from elsewhere; `title` names the config."""
    plans = ranking.plans[:_DRAWN]
    left = ranking.num_settings - len(plans)
    left_out = (
        left and f"{counted(left, 'setting')} that are slower or need more memory are left out."
    )
    data = {
        "left_out": left_out,
        "title": f"{title} on {planner.cluster.size} x {planner.cluster.device.title}",
        "memory": planner.cluster.device.memory,
        "plans": [
            {
                "mesh": str(plan.setting.mesh),
                "setting": f"{plan.setting.num_micro_batches} micro-batches of "
                f"{plan.setting.micro_batch}, "
                f"{recompute_words(plan.setting.recompute or planner.recompute)}"
                f"{', weights gathered once a step' * (not plan.setting.reshards)}",
                "bytes": plan.peak,
                "memory": bytes_text(round(plan.peak)),
                "speed": plan.tokens_per_second,
                "fits": plan.fits,
                "command": command(plan.setting, planner, start),
                "kinds": plan.kinds(),
                "bars": [
                    [(round(begin, 6), round(end, 6), what) for begin, end, what in rank]
                    for rank in plan.simulation.bars()
                ],
            }
            for plan in plans
        ],
    }
    # In a script, only a closing tag could end it.
    text = json.dumps(data).replace("<", "\\u003c")
    values = {"title": html.escape(data["title"]), "left_out": data["left_out"] or ""}
    values |= {"chart": _chart(data), "data": text}
    source = Path(__file__).with_name("plan_page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda name: values[name[1]], source)


def _chart(data: Mapping[str, Any]) -> str:
    """Return a drawing of memory against speed."""
    plans, memory = data["plans"], data["memory"]
    most = max([memory, *(plan["bytes"] for plan in plans)]) * 1.05
    fastest = max((plan["speed"] for plan in plans), default=1.0) * 1.05

    def across(size: float) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * size / most

    def up(speed: float) -> float:
        return _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * speed / fastest

    points = [
        f'<circle data-plan="{number}" cx="{across(plan["bytes"]):.1f}" '
        f'cy="{up(plan["speed"]):.1f}" class="{"fits" if plan["fits"] else ""}">'
        f"<title>{html.escape(plan['mesh'])}, {html.escape(plan['setting'])}</title></circle>"
        for number, plan in enumerate(plans)
    ]
    parts = [
        _line(across(memory), 20.0, up(0.0), "memory"),
        _label(8.0, 24.0, "start", "tokens a second per device"),
        _label(_WIDTH - 8.0, _HEIGHT - 14.0, "end", "memory per device"),
    ]
    for quarter in range(5):
        size, speed, kind = most * quarter / 4, fastest * quarter / 4, "minor" * (quarter % 2)
        parts.append(_line(across(size), up(0.0), up(0.0) + 6, ""))
        parts.append(_label(across(size), up(0.0) + 34, "middle", bytes_text(round(size)), kind))
        parts.append(_label(_MARGIN - 8.0, up(speed) + 5, "end", f"{speed:,.0f}", kind))
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join([*parts, *points])}</svg>'


def _line(x: float, top: float, bottom: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'


def _label(x: float, y: float, anchor: str, text: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
