"""How many operations a training step launches, fidgpt's beside the loop of nanoGPT.

    FIDGPT_CPU_KERNELS=0 python benchmarks/training/launches.py

Each operation that computes is a kernel on a GPU, or a few; views are none. Where kernels are
small, a step takes as long as Python takes to launch them. Counted on the CPU, with the operations
that a GPU would take, at a small width: their number depends on the depth alone. Compiled steps
launch fewer, which this does not count.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from plain import Decoder
from shapes import SHAPES, Shape
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fidgpt.compose.composition import compose
from fidgpt.compose.runs import build_trainer
from fidgpt.data import Batch
from fidgpt.model import materialize

CPU = torch.device("cpu")
SMALL: dict[str, Shape] = {
    name: replace(SHAPES[name], num_layers=12, seq_len=32, batch_size=2)
    for name in ("gpt2_1m", "bytes_1m")
}
# Operations that only look at memory in another way, or ask for some.
FREE = ("aten::detach", "aten::empty", "aten::lift_fresh", "aten::_unsafe_view")


class Launches(TorchDispatchMode):
    """Counts operations that compute, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not (func.is_view or func.name().startswith(FREE)):
            self.counts[func.name().partition(".")[0]] += 1
        return func(*args, **(kwargs or {}))


def counted(step: Callable[[], object]) -> Counter[str]:
    """Return what a step launches, after one that allocates the optimizer's state."""
    step()
    with Launches() as launches:
        step()
    return launches.counts


def nanogpt(shape: Shape, *, autocast: bool, fused: bool | None = None) -> Counter[str]:
    """Return the launches of a loop as one writes it by hand."""
    model = Decoder(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    batch = torch.zeros(shape.batch_size, shape.seq_len + 1, dtype=torch.int64)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return counted(step)


def fidgpt(shape: Shape, *directives: str) -> Counter[str]:
    """Return the launches of a step of the trainer."""
    made = compose([*shape.directives(shape.batch_size), *directives])
    trainer = build_trainer(made.resolved)
    materialize(trainer.model, device=CPU, seed=0)
    state = trainer.init_state()
    batch = torch.zeros(shape.batch_size, shape.seq_len + 1, dtype=torch.int64)
    return counted(lambda: trainer.update(state, Batch(batch)))


def steps(shape: Shape) -> Mapping[str, Counter[str]]:
    """Return the launches of every kind of step."""
    return {
        "nanoGPT, float32": nanogpt(shape, autocast=False, fused=True),
        "nanoGPT, bf16 autocast": nanogpt(shape, autocast=True, fused=True),
        "fidgpt, float32": fidgpt(shape, "use:precision=Float32"),
        "fidgpt, bfloat16": fidgpt(shape, "use:precision=BFloat16"),
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="Operations of a training step.")
    parser.add_argument("--names", type=int, default=0, help="list so many of the most frequent")
    arguments = parser.parse_args()
    columns = {name: steps(shape) for name, shape in SMALL.items()}
    print("| |", " | ".join(columns), "|\n|---|" + "---|" * len(columns))
    for way in next(iter(columns.values())):
        print(f"| {way} |", " | ".join(f"{own[way].total():,}" for own in columns.values()), "|")
    for shape, ways in columns.items() if arguments.names else ():
        for way, counts in ways.items():
            print(f"\n{shape}, {way}: {dict(counts.most_common(arguments.names))}")


if __name__ == "__main__":
    main()
