"""How fast GPT-2 124M generates in fidgpt, beside transformers and llama.cpp.

    python benchmarks/generation/speed.py --peers=PYTHON

Every contestant is a process of its own with the same number of threads. They take turns, round
after round, so that whatever else the machine does meets them all alike. Peers that are not
installed are left out, and named.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import torch
from contestants import CLOCKS, CONTESTANTS, DTYPES, LAYERS, VOCAB, WIDTH

sys.path.append(str(Path(__file__).parents[1] / "training"))
from machine import gpu, machine  # pyright: ignore[reportMissingImports]
from processes import Contestant, started  # pyright: ignore[reportMissingImports]

# What a token reads: the matrices of all layers, and the table.
WEIGHTS = 12 * WIDTH**2 * LAYERS + VOCAB * WIDTH
BANDWIDTH_BYTES = 1 << 29  # no cache holds it
OWN = "fidgpt"


def warm_contestant(
    name: str, dtype: str, batch_size: int, asked: argparse.Namespace
) -> AbstractContextManager[Contestant | None]:
    """A contestant that is warm, or None if what it compares with is not installed."""
    python = sys.executable if name.startswith(OWN) else asked.peers
    command = [python, str(Path(__file__).with_name("contestants.py")), name, f"--dtype={dtype}"]
    command += [
        f"--device={asked.device}",
        f"--batch_size={batch_size}",
        f"--prompt_tokens={asked.prompt_tokens}",
        f"--num_tokens={asked.num_tokens}",
        f"--clock={asked.clock}",
    ]
    return started(command, name=f"{name}, {dtype}, batch of {batch_size}", threads=asked.threads)


def bandwidth(device: torch.device, *, threads: int, clock: str) -> float:
    """The bytes a second that a device reads at best, of one array once."""
    torch.set_num_threads(threads)
    array, best = torch.zeros(BANDWIDTH_BYTES // 4, device=device), 0.0
    for _ in range(10):
        begin = CLOCKS[clock]()
        array.amax().item()
        best = max(best, BANDWIDTH_BYTES / (CLOCKS[clock]() - begin))
    return best


def table(results: dict[str, Contestant], *, batch_size: int, least: float) -> str:
    """Medians in Markdown, and the speed of fidgpt as a multiple of each, by round.

    Args:
      results: what took part.
      batch_size: number of rows.
      least: seconds that reading the weights once takes.
    """
    lines = [
        "| | tokens/s | ms a step | of what memory allows | fidgpt writes | rounds from to "
        "| prompt, ms | fidgpt reads it |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    own = results.get(OWN)
    for name, result in results.items():
        step, prefill = (statistics.median(result.each(n)) for n in ("step", "prefill"))
        row = f"| {name} | {batch_size / step:.1f} | {step * 1e3:.1f} | {least / step:.0%} "
        if own is None:
            lines.append(f"{row}| | | {prefill * 1e3:.0f} | |")
            continue
        each = ratios(result.each("step"), own.each("step"))
        reads = statistics.median(ratios(result.each("prefill"), own.each("prefill")))
        lines.append(
            f"{row}| {statistics.median(each):.2f} | {min(each):.2f} {max(each):.2f} "
            f"| {prefill * 1e3:.0f} | {reads:.2f} |"
        )
    return "\n".join(lines)


def ratios(theirs: Sequence[float], own: Sequence[float]) -> list[float]:
    """The times of one over those of another, round by round."""
    return [other / mine for other, mine in zip(theirs, own, strict=True)]


def main() -> None:
    """Prints a table for each number format and batch size."""
    parser = argparse.ArgumentParser(description="Generation by fidgpt and by its peers.")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="defaults to all")
    parser.add_argument("--batch_size", action="append", type=int, help="defaults to 1 and 8")
    parser.add_argument(
        "--contestant",
        action="append",
        choices=CONTESTANTS,
        help="defaults to all but variants",
    )
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu beside others")
    parser.add_argument("--prompt_tokens", type=int, default=128)
    parser.add_argument("--num_tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peers", default=sys.executable, help="Python that has the peers")
    asked = parser.parse_args()
    variants = {name for name in CONTESTANTS if name.startswith(f"{OWN},")}
    names = asked.contestant or [name for name in CONTESTANTS if name not in variants]
    print(machine(asked.threads) if asked.device.type == "cpu" else gpu())
    measured = {"threads": asked.threads, "clock": asked.clock}
    for dtype in asked.dtype or DTYPES:
        for batch_size in asked.batch_size or (1, 8):
            results: dict[str, Contestant] = {}
            with ExitStack() as stack:
                for name in names:
                    one = stack.enter_context(warm_contestant(name, dtype, batch_size, asked))
                    if one is not None:
                        results[name] = one
                fastest = 0.0
                for _ in range(asked.rounds):
                    fastest = max(fastest, bandwidth(asked.device, **measured))
                    for one in results.values():
                        one.take_turn()
            least = WEIGHTS * DTYPES[dtype].itemsize / fastest
            title = f"{dtype}, batch of {batch_size}, {asked.prompt_tokens} + {asked.num_tokens}"
            print(f"\n#### {title} tokens, memory {fastest / 1e9:.1f} GB/s\n")
            print(table(results, batch_size=batch_size, least=least), flush=True)


if __name__ == "__main__":
    main()
