"""How many times as fast as plain float32 a step could be that took no time but for its products.

    OMP_NUM_THREADS=2 python benchmarks/training/products.py --shape=gpt2_124m

The matrix products of a step in their order, forward and backward, each with matrices of its own,
beside a step of plain PyTorch in float32: round after round in one process, on a CPU.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from contestants import CONTESTANTS, Task
from machine import machine
from shapes import SHAPES, Shape
from torch import Tensor

PLAIN = "PyTorch, float32"
FORMATS = (torch.float32, torch.bfloat16)
WARM_UP = 2
Product = tuple[Tensor, Tensor]


def linear(tokens: int, ins: int, outs: int, dtype: torch.dtype) -> Iterator[Product]:
    """A linear map of all tokens: its output, and the gradients of its input and its weight."""
    x, gradient = (torch.randn(tokens, size).to(dtype) for size in (ins, outs))
    weight = torch.randn(outs, ins).to(dtype)
    yield from ((x, weight.t()), (gradient, weight), (gradient.t(), x))


def attention(shape: Shape, dtype: torch.dtype) -> Iterator[Product]:
    """Scores and mixtures of one layer and their gradients, but for the masked half."""
    heads, seq = shape.batch_size * shape.num_heads, shape.seq_len
    seen, head_dim = seq // 2, shape.hidden_dim // shape.num_heads
    query, gradient = (torch.randn(heads, seq, head_dim).to(dtype) for _ in range(2))
    key, value = (torch.randn(heads, seen, head_dim).to(dtype) for _ in range(2))
    weights = torch.randn(heads, seq, seen).to(dtype)
    yield from ((query, key.mT), (weights, value), (gradient, value.mT))
    yield from ((weights.mT, gradient), (weights, key), (weights.mT, query))


def products(shape: Shape, dtype: torch.dtype) -> list[Product]:
    """All of a step."""
    tokens, width, inner = shape.batch_size * shape.seq_len, shape.hidden_dim, shape.ffn_dim
    kv_width = width * shape.num_kv_heads // shape.num_heads
    outward = 1 if shape.has_learned_positions else 2  # gate and up
    sizes = [(width, width)] * 2 + [(width, kv_width)] * 2
    sizes += [(width, inner)] * outward + [(inner, width)]
    found: list[Product] = []
    for _ in range(shape.num_layers):
        for ins, outs in sizes:
            found += linear(tokens, ins, outs, dtype)
        found += attention(shape, dtype)
    return [*found, *linear(tokens, width, shape.vocab_size, dtype)]


def computed(factors: list[Product]) -> list[Tensor]:
    """Their products, kept as a step keeps most of them."""
    return [left @ right for left, right in factors]


def seconds(action: Callable[[], object]) -> float:
    """What it takes, by the clock."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def compared(shape: Shape, *, rounds: int) -> list[float]:
    """Seconds of a plain step in float32, and of the products in each format."""
    step = CONTESTANTS[PLAIN](Task(shape, shape.batch_size, torch.device("cpu")))
    batch = torch.randint(0, shape.vocab_size, (shape.batch_size, shape.seq_len + 1))
    made = [products(shape, dtype) for dtype in FORMATS]
    actions = [partial(step, batch), *(partial(computed, factors) for factors in made)]
    taken = [[seconds(action) for action in actions] for _ in range(WARM_UP + rounds)]
    return [statistics.median(column) for column in zip(*taken[WARM_UP:], strict=True)]


def main() -> None:
    """Prints a table, a line for each shape."""
    parser = argparse.ArgumentParser(description="The products of a training step alone.")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="all unless said")
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    print(machine(torch.get_num_threads()), end="\n\n")
    print("| | float32 step, ms | products float32 | products bfloat16 | times at most |")
    print("|---|---|---|---|---|", flush=True)
    for name in asked.shape or SHAPES:
        whole, *parts = compared(SHAPES[name], rounds=asked.rounds)
        told = " | ".join(f"{1e3 * part:,.1f}" for part in (whole, *parts))
        print(f"| {name} | {told} | {whole / parts[-1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
