"""What the loss of a batch takes in time and memory: plain, fidgpt's and torch's own.

    python benchmarks/training/cross_entropy.py

Forward and backward from features of [rows, hidden] through a table of [vocab, hidden], at the
shape of GPT-2 124M. Each contestant and number format is a process of its own; its memory is what
the peak of the process grew by beyond features, table and their gradients.
"""

import argparse
import functools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fidgpt.model import Unembedding
from fidgpt.train import CrossEntropy, FusedCrossEntropy

Loss = Callable[[Tensor, Unembedding, Tensor], Tensor]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def torchs_own(features: Tensor, unembedding: Unembedding, targets: Tensor) -> Tensor:
    """Torch's fused loss with the chunks that it chooses itself."""
    options = nn.LinearCrossEntropyOptions()
    return F.linear_cross_entropy(features, unembedding.weight, targets, options=options)


def plain(features: Tensor, unembedding: Unembedding, targets: Tensor) -> Tensor:
    """All logits at once, as most code has it; in bfloat16 with a float32 copy of them."""
    return F.cross_entropy(unembedding(features).float(), targets)


CONTESTANTS: dict[str, Callable[[], Loss]] = {
    "plain PyTorch": lambda: plain,
    "fidgpt, CrossEntropy()": CrossEntropy,
    "fidgpt, CrossEntropy(chunk_size=256)": functools.partial(CrossEntropy, chunk_size=256),
    "fidgpt, FusedCrossEntropy()": FusedCrossEntropy,
    "torch, linear_cross_entropy": lambda: torchs_own,
}


def measure(name: str, dtype: str, *, sizes: tuple[int, int, int], rounds: int) -> None:
    """Runs one contestant, and prints its figures as JSON."""
    rows, hidden, vocab = sizes
    torch.manual_seed(0)
    features = torch.randn(rows, hidden).to(DTYPES[dtype]).requires_grad_()
    table = nn.Parameter((0.02 * torch.randn(vocab, hidden)).to(DTYPES[dtype]))
    unembedding, targets = Unembedding(table), torch.randint(0, vocab, (rows,))
    features.grad, table.grad = torch.ones_like(features), torch.ones_like(table)
    before = _peak()
    loss, seconds = CONTESTANTS[name](), []
    for _ in range(rounds):
        features.grad.zero_()
        table.grad.zero_()
        begin = time.process_time()
        loss(features, unembedding, targets).backward()
        seconds.append(time.process_time() - begin)
    print(json.dumps({"seconds": min(seconds), "bytes": _peak() - before}))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description="The loss of a batch.")
    parser.add_argument("--sizes", type=int, nargs=3, default=(2048, 768, 50257))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestant", choices=CONTESTANTS)
    parser.add_argument("--dtype", choices=DTYPES)
    asked = parser.parse_args()
    if asked.contestant:
        measure(asked.contestant, asked.dtype, sizes=tuple(asked.sizes), rounds=asked.rounds)
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {asked.sizes}\n")
    print("| | | CPU seconds, least | times | MiB beside the gradients |\n|---|---|---|---|---|")
    for dtype in DTYPES:
        baseline = None
        for name in CONTESTANTS:
            arguments = [f"--contestant={name}", f"--dtype={dtype}", f"--rounds={asked.rounds}"]
            command = [sys.executable, __file__, *arguments, "--sizes", *map(str, asked.sizes)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            baseline = baseline or found["seconds"]
            print(
                f"| {dtype} | {name} | {found['seconds']:.2f} "
                f"| {baseline / found['seconds']:.2f} | {found['bytes'] / 2**20:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
