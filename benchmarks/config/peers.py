"""How long config systems take for the same nested config, fidgpt's beside those of its peers.

    python benchmarks/config/peers.py --peers=PYTHON

Every system is a process of its own. They measure a cell each in turn, round after round, so that
whatever else the machine does meets them all alike. Peers that are not installed are left out, and
named; a cell that would take too long, by what smaller configs took, is left out, and is "-".
"""

import argparse
import json
import math
import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "training"))
from processes import Contestant, started  # pyright: ignore[reportMissingImports]

OURS = "fidgpt"
FLOOR = "dataclasses"
SYSTEMS = (OURS, FLOOR, "ml_collections", "fiddle", "draccus", "tyro", "hydra")
CELLS = {
    "config": "make the config",
    "start": "make it, and 20 overrides as text",
    "override": "20 overrides as text",
    "assign": "20 overrides as values",
    "check": "check every value",
    "build": "build the objects",
    "save": "save",
    "load": "load",
    "diff": "find 5 differences",
}
COMPARED = ("override", "save", "load", "diff")
NUM_DIFFERENCES = 5
ONCE = 0.5  # seconds from which a cell is measured in the first round only
Results = dict[str, dict[str, dict[str, Any]]]  # of a size: system, then cell, then what it took


def compare(
    systems: dict[str, Contestant],
    blocks: int,
    *,
    rounds: int,
    budget: float,
    limit: float,
    smaller: dict[int, Results],
) -> Results:
    """The fastest of all rounds; leaves out what would take longer than `limit` seconds."""
    results: Results = {name: {} for name in systems}
    for cell in CELLS:
        for _ in range(rounds):
            for name, system in systems.items():
                known = results[name].get(cell)
                times = {
                    n: of[name][cell]["seconds"] for n, of in smaller.items() if cell in of[name]
                }
                if forecast(times, blocks) > limit or (known and known["seconds"] > ONCE):
                    continue
                question = {"blocks": blocks, "cell": cell, "budget": budget}
                answer = system.take_turn(json.dumps(question))
                has_cell = answer["seconds"] is not None
                if has_cell and (known is None or answer["seconds"] < known["seconds"]):
                    results[name][cell] = answer
    return results


def forecast(times: dict[int, float], blocks: int) -> float:
    """Seconds that a size will take, by how the time grew between the two largest that ran."""
    if not times:
        return 0.0
    *_, size = sizes = sorted(times)
    growth = 1.0
    if len(sizes) > 1:
        before = sizes[-2]
        growth = max(growth, math.log(times[size] / times[before]) / math.log(size / before))
    return times[size] * (blocks / size) ** growth


def table(results: Results) -> str:
    """Times and, in brackets, how many times fidgpt's they are, in Markdown."""
    lines = [
        "| | " + " | ".join([*CELLS.values(), "file"]) + " |",
        "|---" * (len(CELLS) + 2) + "|",
    ]
    for name, cells in results.items():
        shown = [_shown(cells.get(cell), results.get(OURS, {}).get(cell)) for cell in CELLS]
        size = f"{cells['save']['count'] / 1000:,.0f} KB" if "save" in cells else "-"
        lines.append(f"| {name} | " + " | ".join([*shown, size]) + " |")
    return "\n".join([*lines, *_beside_the_best(results), *_notes(results)])


def _shown(cell: dict[str, Any] | None, ours: dict[str, Any] | None) -> str:
    if cell is None:
        return "-"
    if ours is None or ours is cell:
        return _duration(cell["seconds"])
    ratio = cell["seconds"] / ours["seconds"]
    shown = f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"
    return f"{_duration(cell['seconds'])} ({shown})"


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:,.1f} s"
    return f"{seconds * 1e3:,.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:,.0f} ms"


def _beside_the_best(results: Results) -> Iterator[str]:
    """How fidgpt does beside the fastest peer at what a user waits for; the floor is no peer."""
    ours, peers = results.get(OURS, {}), [name for name in results if name not in (OURS, FLOOR)]
    for cell in COMPARED:
        times = {name: results[name][cell]["seconds"] for name in peers if cell in results[name]}
        if cell in ours and times:
            best = min(times, key=lambda name: times[name])
            ratio = ours[cell]["seconds"] / times[best]
            yield f"\n{CELLS[cell]}: {ratio:.2f} times the fastest peer, {best}."


def _notes(results: Results) -> Iterator[str]:
    """Which systems found more or fewer differences than there are."""
    for name, cells in results.items():
        found = cells.get("diff", {}).get("count", NUM_DIFFERENCES)
        if found != NUM_DIFFERENCES:
            yield f"\n{name} says {found} differences, and there are {NUM_DIFFERENCES}."


def main() -> None:
    """Prints one table for each size."""
    parser = argparse.ArgumentParser(description="Config systems on one nested config.")
    parser.add_argument("--peers", default=sys.executable, help="Python that has the peers")
    parser.add_argument("--blocks", default="12,48,192,1000,5000", help="sizes of the config")
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="all unless said")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=0.3, help="seconds a cell and round")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds that a cell may take")
    arguments = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}; CPU time, fastest of all")
    with ExitStack() as stack:
        systems = {}
        for name in arguments.system or SYSTEMS:
            python = sys.executable if name == OURS else arguments.peers
            command = [python, str(Path(__file__).with_name("contestant.py")), name]
            if system := stack.enter_context(started(command, name=name, threads=1)):
                systems[name] = system
        measured: dict[int, Results] = {}
        for blocks in sorted(map(int, arguments.blocks.split(","))):
            measured[blocks] = compare(
                systems,
                blocks,
                rounds=arguments.rounds,
                budget=arguments.budget,
                limit=arguments.limit,
                smaller=dict(measured),
            )
            values = 27 * blocks + 48
            print(f"\n### {blocks:,} blocks, {values:,} values\n", flush=True)
            print(table(measured[blocks]), flush=True)


if __name__ == "__main__":
    main()
