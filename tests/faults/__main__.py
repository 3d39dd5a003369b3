"""Disturbs runs, or sweeps, and prints how they ended: `python -m faults --num=1000`."""

import argparse
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch._dynamo  # noqa: F401 # or each fork imports it for its first tensor made in a mode

from faults.cases import NO_ROOM, Kinds, World, Wrong
from faults.elastic import ElasticWorld
from faults.machines import MachineWorld
from faults.people import PeopleWorld
from faults.sweeps import SweepWorld

_HEAD = "| fault | times | ended exactly alike | a clear word first | seconds each |"


def table(lines: Mapping[str, Counter[str]]) -> str:
    """Markdown of what was counted by kind, with the sum of all kinds in the last line."""
    total = sum(lines.values(), Counter())
    rows = [
        f"| {name} | {line['faults']} | {line['exact']} | {line['refused']} "
        f"| {line['milliseconds'] / 1e3 / max(line['faults'], 1):.1f} |"
        for name, line in [*lines.items(), ("all", total)]
    ]
    return "\n".join([_HEAD, "|---|---|---|---|---|", *rows])


def main() -> int:
    """Returns 0 if every run ended as it must."""
    # Which a job of a shell may ignore, or `nohup`.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    options, given = _options(), sys.argv[1:]  # which commands in this process change
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    world: World
    if options.elastic:
        world = ElasticWorld(folder, options.variant)
    elif options.machines:
        world = MachineWorld(folder, options.variant)
    elif options.sweeps:
        world = SweepWorld(folder)
    else:
        # Of few faults, the variants that between them hold every part.
        few = ["plain", "all of it"] if options.num < 200 else []
        world = PeopleWorld(folder, [options.variant] if options.variant else few)
    lines: dict[str, Counter[str]] = {}
    num_wrong = 0
    for number, kind in enumerate(_drawn(world.kinds, options.num, options.seed)):
        if (options.only or kind) != kind or number < options.first:
            continue
        if kind.endswith(NO_ROOM) and not world.has_small_disk:
            continue
        begin = time.perf_counter()
        case = world.case(kind, number, random.Random(f"{options.seed} {number}"))
        line = lines.setdefault(kind, Counter())
        try:
            world.kinds[kind][0](case)
            case.finish()
            line.update(exact=1, refused=int(case.refused is not None))
            shutil.rmtree(case.folder)
            shutil.rmtree(case.run.parent, ignore_errors=True)
        except KeyboardInterrupt:  # the table of those before is worth having
            case.end_all()
            break
        except (Wrong, ValueError, OSError) as wrong:
            num_wrong += 1
            case.end_all()
            again = shlex.join([*given, f"--first={number}", f"--only={kind}"])
            what = f"fault {number}, {kind}, in {case.folder}: {type(wrong).__name__}: {wrong}"
            print(f"{what}\nagain: {again}", file=sys.stderr, flush=True)
        line.update(faults=1, milliseconds=round(1e3 * (time.perf_counter() - begin)))
    print(table({kind: lines[kind] for kind in world.kinds if kind in lines}))
    if not world.has_small_disk:
        print("No small disk could be mounted: the cases of a full disk were left out.")
    if not num_wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return min(num_wrong, 1)


def _drawn(kinds: Kinds, num: int, seed: int) -> Iterator[str]:
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
    parser.add_argument("--seed", type=int, default=0, help="of all random choices")
    parser.add_argument("--first", type=int, default=0, help="leave out those before")
    parser.add_argument("--sweeps", action="store_true", help="of sweeps, not of single runs")
    parser.add_argument("--elastic", action="store_true", help="of runs on nodes that come and go")
    parser.add_argument("--machines", action="store_true", help="of runs on two machines")
    parser.add_argument("--only", help="this kind alone")
    parser.add_argument("--variant", help="this run alone")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
