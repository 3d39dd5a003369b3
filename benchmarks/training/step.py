"""How many tokens a second a training step takes in, fidgpt's beside those of its peers.

    python benchmarks/training/step.py --peers=PYTHON
    python benchmarks/training/step.py --device=cuda --shape=gpt2_124m_1024 --batch_size=32

Every contestant is a process of its own with the same number of threads. They train for a second
each in turn, round after round, so that whatever else the machine does meets them all alike; where
they are too large for that, and on a GPU, one after the other. Peers that are not installed are
left out, and named.
"""

import argparse
import statistics
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from contestants import CONTESTANTS
from machine import gpu, machine
from processes import Contestant, started
from shapes import SHAPES, Shape

from fidgpt.compose.composition import compose
from fidgpt.cost import TRAINING_PASSES, forward_pass
from fidgpt.graph import build
from fidgpt.train.device import peak_flops

BASELINES = {"cpu": "PyTorch, float32", "cuda": "PyTorch, bf16 autocast, fused AdamW, compiled"}
DEFAULT = "fidgpt, as it comes"
OURS = ("PyTorch", "fidgpt")  # they need no peers, which may live in another environment


def warm_contestant(
    name: str, asked: argparse.Namespace, shape: str
) -> AbstractContextManager[Contestant | None]:
    """A contestant after its first step, or None if what it compares with is not installed."""
    python = sys.executable if name.startswith(OURS) else asked.peers
    size = asked.batch_size or SHAPES[shape].batch_size
    command = [python, str(Path(__file__).with_name("contestants.py")), shape, name]
    command += [f"--batch_size={size}", f"--device={asked.device}", f"--clock={asked.clock}"]
    return started(command, name=f"{shape}: {name}", threads=asked.threads)


def compare(shape: str, names: Iterable[str], asked: argparse.Namespace) -> dict[str, Contestant]:
    """Lets the contestants of a shape take their turns."""
    apart = SHAPES[shape].is_apart or asked.device.type == "cuda"
    running: dict[str, Contestant] = {}
    with ExitStack() as stack:
        for name in names:
            with ExitStack() as own:
                keeper = own if apart else stack
                contestant = keeper.enter_context(warm_contestant(name, asked, shape))
                if contestant is None:
                    continue
                running[name] = contestant
                for _ in range(asked.rounds if apart else 0):
                    contestant.take_turn()
        for _ in range(0 if apart else asked.rounds):
            for contestant in running.values():
                contestant.take_turn()
    return running


def steps_of(results: dict[str, Contestant]) -> dict[str, list[float]]:
    """The seconds of every step of all turns."""
    return {name: [*chain(*result.each("seconds"))] for name, result in results.items()}


def table(
    results: dict[str, Contestant], *, baseline: str, tokens: int, flops: int, peak: float
) -> str:
    """Tokens a second, and how many times the baseline that is, in Markdown.

    By the median of all steps; by the fastest step, which is what is left where other programs
    steal time; and the lowest and highest ratio of two medians of one round.

    Args:
      results: what took part.
      baseline: what is 1.00.
      tokens: of a step.
      flops: operations of a step.
      peak: operations a second that the machine can do in bfloat16.
    """
    each_step = steps_of(results)
    base = each_step[baseline]
    lines = [
        "| | tokens/s | times, median | times, fastest | rounds from to | of the peak "
        "| MiB at peak | s to the first step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        median = statistics.median(each_step[name])
        turns = zip(results[baseline].each("seconds"), result.each("seconds"), strict=True)
        each = [statistics.median(theirs) / statistics.median(own) for theirs, own in turns]
        lines.append(
            f"| {name} | {tokens / median:,.0f} | {statistics.median(base) / median:.2f} "
            f"| {min(base) / min(each_step[name]):.2f} | {min(each):.2f} {max(each):.2f} "
            f"| {flops / median / peak:.0%} | {max(result.each('peak_memory')) / 2**20:,.0f} "
            f"| {result.warm_up:.1f} |"
        )
    return "\n".join(lines)


def margin(results: dict[str, Contestant]) -> str:
    """How fidgpt compares with the best of the others, by the median of all steps."""
    if DEFAULT not in results:
        return ""
    medians = {name: statistics.median(seconds) for name, seconds in steps_of(results).items()}
    own = medians[DEFAULT]
    best = min((name for name in medians if not name.startswith("fidgpt")), key=medians.__getitem__)
    memory = max(results[DEFAULT].each("peak_memory")) / max(results[best].each("peak_memory"))
    return (
        f"\n{DEFAULT}: {medians[best] / own:.2f} times the best peer ({best}), "
        f"with {memory:.2f} times its memory."
    )


def flops_of(shape: Shape, *, batch_size: int) -> int:
    """Operations of a training step, as fidgpt counts them."""
    model: Any = build(compose(shape.directives(batch_size)).config).model
    each = TRAINING_PASSES * forward_pass(model, seq_len=shape.seq_len).total
    return each * batch_size * shape.seq_len


def main() -> None:
    """Prints one table for each shape."""
    parser = argparse.ArgumentParser(description="Training steps of fidgpt and its peers.")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="all unless said")
    parser.add_argument("--contestant", action="append", choices=CONTESTANTS, help="likewise")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batch_size", type=int, help="that of the shape unless said")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    clocks = ("wall", "cpu")
    parser.add_argument(
        "--clock", choices=clocks, default="wall", help="of steps; cpu beside others"
    )
    parser.add_argument("--peers", default=sys.executable, help="Python that has the peers")
    asked = parser.parse_args()
    baseline = BASELINES[asked.device.type]
    chosen = asked.contestant or list(CONTESTANTS)
    print(machine(asked.threads) if asked.device.type == "cpu" else gpu())
    peak = peak_flops(asked.device, torch.bfloat16)
    for name in asked.shape or SHAPES:
        shape = SHAPES[name]
        fitting = [one for one in chosen if one.startswith((*shape.peers, "fidgpt"))]
        first = baseline if "PyTorch" in shape.peers else f"{shape.peers[0]}, float32"
        results = compare(name, [first, *(one for one in fitting if one != first)], asked)
        size = asked.batch_size or shape.batch_size
        print(f"\n### {name}, {size} x {shape.seq_len} tokens\n")
        flops = flops_of(shape, batch_size=size)
        tokens = size * shape.seq_len
        print(table(results, baseline=first, tokens=tokens, flops=flops, peak=peak))
        print(margin(results), flush=True)


if __name__ == "__main__":
    main()
