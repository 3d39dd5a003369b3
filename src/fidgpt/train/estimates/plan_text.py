"""Plans as texts, and as a page for a browser: memory against speed, and the timeline of a step."""

import html
import json
import math
from collections.abc import Mapping, Sequence
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


def page_data(
    ranking: Ranking, planner: Planner, start: str, *, title: str
) -> Mapping[str, object]:
    """Return what the page of plans draws; `title` names the config."""
    plans = ranking.plans[:_DRAWN]
    left = ranking.num_settings - len(plans)
    return {
        "left_out": left
        and f"{counted(left, 'setting')} that are slower or need more memory are left out.",
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


_WIDTH, _HEIGHT, _MARGIN = 900, 460, 84

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark;
  --line: light-dark(#ddd, #444); --raised: light-dark(#f5f5f5, #222);
  --fits: light-dark(#4e79a7, #86b0ff); --misfit: light-dark(#e15759, #ff8a80); }}
body {{ font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; padding: 0 1em; max-width: 960px; }}
svg {{ background: var(--raised); border: 1px solid var(--line); display: block; margin: 1em 0; }}
text {{ fill: currentColor; }}
line {{ stroke: var(--line); }} line.memory {{ stroke: currentColor; }}
circle {{ cursor: pointer; fill: var(--misfit); r: 5px; }} circle.fits {{ fill: var(--fits); }}
circle:hover, circle.on {{ stroke: currentColor; stroke-width: 3; }}
code {{ background: var(--raised); padding: .3em; display: block; }}
code span {{ display: inline-block; }}
td {{ padding-right: 1em; }}
@media (max-width: 600px) {{
  text {{ font-size: 26px; }} text.minor {{ display: none; }} circle {{ r: 9px; }}
}}
</style></head><body>
<h1>{title}</h1>
<p>Each point is a mesh with a micro-batch and a choice of recomputation; those to the left of the
line fit the memory of a device.{left_out} Choose one to see its command, what passes the time of
its step, and the timeline of its pipeline.</p>
{chart}
<div id="chosen"></div>
<script id="data" type="application/json">{data}</script>
<script>{script}</script>
</body></html>
"""

_SCRIPT = """
const data = JSON.parse(document.getElementById("data").textContent);
const chosen = document.getElementById("chosen");
const make = (tag, text) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  return node;
};
function bars(ranks) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const end = Math.max(...ranks.flat().map(bar => bar[1]));
  svg.setAttribute("viewBox", `0 0 900 ${ranks.length * 18}`);
  ranks.forEach((own, rank) => own.forEach(([from, to, what]) => {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const fill = what.includes("F") ? "#4e79a7" : what.includes("W") ? "#f1ce63" : "#59a14f";
    const place = {x: 900 * from / end, y: rank * 18 + 1, height: 16,
                   width: Math.max(.5, 900 * (to - from) / end - .5), fill};
    for (const [name, value] of Object.entries(place)) bar.setAttribute(name, value);
    bar.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "title"))
      .textContent = `process ${rank}: ${what}, ${from} to ${to} s`;
    svg.appendChild(bar);
  }));
  return svg;
}
function show(number) {
  const plan = data.plans[number];
  document.querySelectorAll("circle").forEach(
    node => node.classList.toggle("on", node.dataset.plan == number));
  const command = make("code");
  // Lines break at spaces, and not at hyphens.
  command.append(...plan.command.split(" ").flatMap(word => [make("span", word), " "]));
  const speed = `${plan.speed.toPrecision(4)} tokens a second per device`;
  chosen.replaceChildren(
    make("h2", plan.mesh), make("p", `${plan.setting}: ${plan.memory} and ${speed}`),
    command, make("h3", "Seconds of a step"));
  const table = make("table");
  for (const [kind, seconds] of Object.entries(plan.kinds)) {
    const row = table.insertRow();
    row.insertCell().textContent = kind;
    row.insertCell().textContent = `${seconds.toPrecision(3)} s`;
  }
  chosen.append(table);
  if (!plan.bars.flat().length) return;
  chosen.append(make("h3", "Pipeline: forward blue, backward green, weights yellow"));
  chosen.append(bars(plan.bars));
}
document.querySelectorAll("circle").forEach(
  node => node.addEventListener("click", () => show(node.dataset.plan)));
if (data.plans.length) show(0);
"""


def page(data: Mapping[str, Any]) -> str:
    """Return the page, which needs nothing from elsewhere.

    Args:
      data: title, memory of a device, plans and omissions, as `page_data` returns them.
    """
    # In a script, only a closing tag could end it.
    text = json.dumps(data).replace("<", "\\u003c")
    return _PAGE.format(
        title=html.escape(data["title"]),
        left_out=data["left_out"] or "",
        chart=_chart(data),
        data=text,
        script=_SCRIPT,
    )


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
