"""Disturbs runs, or sweeps, and prints how they ended: `python -m faults --num=1000`."""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.kinds import KINDS, World
from faults.runs import Wrong, variants
from faults.sweeps.clusters import CLUSTERS, ClusterWorld
from faults.sweeps.kinds import SWEEP_KINDS, SweepWorld

_HEAD = "| fault | times | ended exactly alike | a clear word first | seconds each |"


@dataclass
class Line:
    """Of one kind.

    Attributes:
      faults: runs that were disturbed so.
      exact: runs whose every number and byte was that of the undisturbed one in the end.
      refused: runs that stopped with one `error:` line on the way there.
      seconds: for all of them.
    """

    faults: int = 0
    exact: int = 0
    refused: int = 0
    seconds: float = 0.0


def table(lines: Mapping[str, Line]) -> str:
    """Markdown, with the sum of all kinds in the last line."""
    total = Line(
        faults=sum(line.faults for line in lines.values()),
        exact=sum(line.exact for line in lines.values()),
        refused=sum(line.refused for line in lines.values()),
        seconds=sum(line.seconds for line in lines.values()),
    )
    rows = [
        f"| {name} | {line.faults} | {line.exact} | {line.refused} "
        f"| {line.seconds / max(line.faults, 1):.1f} |"
        for name, line in [*lines.items(), ("all", total)]
    ]
    return "\n".join([_HEAD, "|---|---|---|---|---|", *rows])


def main() -> int:
    """Returns 0 if every run ended as it must."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    kinds: Mapping[str, tuple[Callable[[Any], None], int]]
    world: Any
    if options.sweeps and options.on:
        world = ClusterWorld(folder, options.on)
        kinds = world.kinds
    elif options.sweeps:
        kinds, world = SWEEP_KINDS, SweepWorld(folder)
    else:
        kinds, world = KINDS, World(folder, _names(options, list(variants(folder))))
    lines: dict[str, Line] = {}
    num_wrong = 0
    on = f"--on={options.on} " if options.on else ""
    for number, kind in enumerate(_drawn(kinds, options.num, options.seed)):
        if (options.only or kind) != kind or number < options.first:
            continue
        begin = time.perf_counter()
        case = world.case(kind, number, random.Random(f"{options.seed} {number}"))
        line = lines.setdefault(kind, Line())
        line.faults += 1
        try:
            kinds[kind][0](case)
            line.exact += 1
            line.refused += case.refused is not None
            shutil.rmtree(case.folder)
            shutil.rmtree(case.run.parent, ignore_errors=True)
        except KeyboardInterrupt:  # the table of those before is worth having
            line.faults -= 1
            case.end_all()
            break
        except Wrong as wrong:
            num_wrong += 1
            case.end_all()
            print(
                f"fault {number}, {kind}, in {case.folder}: {wrong}\n"
                f"again: {'--sweeps ' * options.sweeps}{on}--num={options.num} "
                f"--seed={options.seed} --first={number} "
                f"--only='{kind}'",
                file=sys.stderr,
                flush=True,
            )
        line.seconds += time.perf_counter() - begin
    print(table({kind: lines[kind] for kind in kinds if kind in lines}))
    if not world.has_small_disk:
        print("No small disk could be mounted: files could not grow, instead of a full disk.")
    if not num_wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return min(num_wrong, 1)


def _names(options: argparse.Namespace, names: list[str]) -> list[str]:
    """The variants to draw from; of few faults, those that between them hold every part."""
    if options.variant:
        return [name for name in names if name == options.variant]
    return names if options.num >= 200 else ["plain", "saved beside", "all of it"]


def _drawn(kinds: Mapping[str, tuple[Any, int]], num: int, seed: int) -> Iterator[str]:
    """Yield `num` kinds, each as often as its share, in random order."""
    shares = [kind for kind, (_, share) in kinds.items() for _ in range(share)]
    draw = random.Random(seed)
    while num > 0:
        draw.shuffle(shares)
        yield from shares[:num]
        num -= len(shares)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--num", type=int, default=120, help="faults")
    parser.add_argument("--seed", type=int, default=0, help="of all that is left to chance")
    parser.add_argument("--first", type=int, default=0, help="leave out those before")
    parser.add_argument("--sweeps", action="store_true", help="of sweeps, not of single runs")
    parser.add_argument("--on", choices=list(CLUSTERS), help="this cluster, of sweeps")
    parser.add_argument("--only", help="this kind alone")
    parser.add_argument("--variant", help="this run alone")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
