"""A page of plans for a browser: memory against speed, and the timeline of a step."""

import html
import json
from collections.abc import Mapping
from typing import Any

from fidgpt.train.estimates.summary_text import bytes_text

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
