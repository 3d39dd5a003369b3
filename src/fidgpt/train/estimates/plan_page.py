"""A page of plans for a browser: memory against speed, and the timeline of a step."""

import html
import json
from collections.abc import Mapping
from typing import Any

_WIDTH, _HEIGHT, _MARGIN = 900, 420, 60

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px system-ui, sans-serif; margin: 2em; max-width: 960px; color: #222; }}
svg {{ background: #fafafa; border: 1px solid #ddd; display: block; margin: 1em 0; }}
circle {{ cursor: pointer; }} circle:hover, circle.on {{ stroke: #000; stroke-width: 2; }}
code {{ background: #f0f0f0; padding: .3em; display: block; overflow-x: auto; }}
td {{ padding-right: 1em; }}
</style></head><body>
<h1>{title}</h1>
<p>Each point is a mesh with a micro-batch and a choice of recomputation; those to the left of the
line fit the memory of a device. Choose one to see its command, what passes the time of its step,
and the timeline of its pipeline.</p>
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
  chosen.replaceChildren(make("h2", plan.mesh), make("p", plan.setting),
                         make("code", plan.command));
  const table = make("table");
  for (const [kind, seconds] of Object.entries(plan.kinds)) {
    const row = table.insertRow();
    row.insertCell().textContent = kind;
    row.insertCell().textContent = `${seconds.toPrecision(3)} s`;
  }
  chosen.append(table);
  if (plan.bars.flat().length) chosen.append(bars(plan.bars));
}
document.querySelectorAll("circle").forEach(
  node => node.addEventListener("click", () => show(node.dataset.plan)));
if (data.plans.length) show(0);
"""


def page(data: Mapping[str, Any]) -> str:
    """Return the page, which needs nothing from elsewhere.

    Args:
      data: title, memory of a device, and plans, as `page_data` returns it.
    """
    # In a script, only a closing tag could end it.
    text = json.dumps(data).replace("<", "\\u003c")
    return _PAGE.format(
        title=html.escape(data["title"]), chart=_chart(data), data=text, script=_SCRIPT
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
        f'cy="{up(plan["speed"]):.1f}" r="5" fill="{"#4e79a7" if plan["fits"] else "#e15759"}">'
        f"<title>{html.escape(plan['mesh'])}, {html.escape(plan['setting'])}</title></circle>"
        for number, plan in enumerate(plans)
    ]
    line = f'<line x1="{across(memory):.1f}" x2="{across(memory):.1f}" y1="20" y2="{_HEIGHT - 40}"'
    labels = [
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 12}">memory per device, up to '
        f"{most / 2**30:,.0f} GiB</text>",
        f'<text x="8" y="16">tokens a second per device, up to {fastest:,.0f}</text>',
    ]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">{line} stroke="#999"/>'
        f"{''.join(labels)}{''.join(points)}</svg>"
    )
