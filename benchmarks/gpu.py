"""What a device computes, and how much memory that takes, beside the CPU and the plan.

    python benchmarks/gpu.py correctness --device=cuda
    python benchmarks/gpu.py memory --device=cuda --config=gpt2_124m

`benchmarks/gpu.sh` calls both. `correctness` trains small models of each family for some steps from
one seed, on the CPU in float32 and on the device in several ways, and prints the largest relative
difference of losses and gradient norms. The exit status is 1 if one exceeds its bound.
"""

import argparse
import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from compare_commits import CASES

from fidgpt.compose.composition import compose
from fidgpt.data import Batch
from fidgpt.model import flex, materialize
from fidgpt.parallel import Mesh
from fidgpt.parallel.places import single_process_places
from fidgpt.runs.building import build_trainer
from fidgpt.train.device import peak_memory
from fidgpt.train.estimates.facts import facts_of

FAMILIES = ("gpt2", "llama", "gemma2", "gemma3", "gpt_oss", "mixtral", "qwen3_moe", "deepseek")
FAMILIES += ("latent", "packing", "mtp", "lora")
FEW = ("llama", "mixtral")  # of a rehearsal
STEPS = 3
CPU = torch.device("cpu")
# How each way is called, what it changes, and the bound of its differences.
WAYS: dict[str, tuple[tuple[str, ...], float]] = {
    "float32": ((), 1e-3),
    "bfloat16": (("use:precision=BFloat16",), 5e-2),
    "bfloat16, compiled": (("use:precision=BFloat16", "fiddler:use_compile"), 5e-2),
    "bfloat16, FlexAttention": (("use:precision=BFloat16",), 5e-2),
    "bfloat16, FSDP2": (("use:precision=BFloat16",), 5e-2),
}


@contextlib.contextmanager
def sharded(parallel: Any) -> Iterator[None]:
    """Context in which weights are sharded over a single process."""
    from torch.distributed.device_mesh import init_device_mesh

    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        dist.init_process_group(init_method=store, rank=0, world_size=1)
        try:
            mesh = init_device_mesh(parallel.device.type, (1,), mesh_dim_names=("shard",))
            parallel.places = dataclasses.replace(single_process_places(Mesh()), fsdp=mesh)
            yield
        finally:
            dist.destroy_process_group()


def steps(directives: Sequence[str], device: torch.device, way: str = "") -> list[float]:
    """Return the losses and gradient norms of some steps on one batch."""
    made = compose([one for one in directives if "text.jsonl" not in one])
    made.config.parallel.device = device
    if "FlexAttention" in way:
        for block in [*made.config.model.first_blocks, *made.config.model.blocks]:
            block.attention.kernel = flex
    trainer = build_trainer(made.config)
    numbers: list[float] = []
    with sharded(trainer.parallel) if "FSDP2" in way else contextlib.nullcontext():
        trainer.parallel.shard(trainer.model, trainer.precision.dtype)
        materialize(trainer.model, device=device, seed=0)
        state = trainer.init_state()
        drawn = torch.Generator().manual_seed(0)
        size = (trainer.batch_size, trainer.seq_len + 1)
        batch = torch.randint(0, 256, size, generator=drawn)
        for _ in range(STEPS):
            row = trainer.update(state, Batch(batch))
            numbers += [row["loss"], row["grad_norm"]]
    return numbers


def correctness(device: torch.device) -> bool:
    """Print a table of differences; return whether all are within their bounds."""
    is_rehearsal, all_fine = device.type == "cpu", True
    print(f"Largest relative difference from float32 on the CPU, in {STEPS} steps.\n")
    print("| |", " | ".join(WAYS), "|\n|---|" + "---|" * len(WAYS))
    for family in FEW if is_rehearsal else FAMILIES:
        directives = [*CASES[family].directives, "set:seq_len=64", "set:batch_size=4"]
        expected, cells = steps(directives, CPU), []
        for way, (changes, bound) in WAYS.items():
            if is_rehearsal and "compiled" in way and family != FEW[0]:
                cells.append("left out")
                continue
            try:
                found = steps([*directives, *changes], device, way)
            except Exception as error:
                cells.append(f"**{type(error).__name__}**: {str(error).splitlines()[0][:80]}")
                all_fine = False
                continue
            pairs = zip(found, expected, strict=True)
            worst = max(abs(one - other) / abs(other) for one, other in pairs)
            is_fine = worst <= bound
            cells.append(f"{worst:.1e}" if is_fine else f"**{worst:.1e}**")
            all_fine &= is_fine
        print(f"| {family} |", " | ".join(cells), "|", flush=True)
    return all_fine


def memory(device: torch.device, config: str, directives: Sequence[str]) -> None:
    """Print the peak that fidgpt plans for a config, and that of some steps."""
    made = compose([f"config:{config}", *directives])
    made.config.parallel.device = device
    trainer = build_trainer(made.config)
    planned = facts_of(trainer).plan.peak
    materialize(trainer.model, device=device, seed=0)
    state = trainer.init_state()
    batch = torch.randint(0, trainer.vocab_size, (trainer.batch_size, trainer.seq_len + 1))
    for _ in range(STEPS):
        trainer.update(state, Batch(batch))
    taken = peak_memory(device)
    print("| | planned, MiB | taken, MiB | taken / planned |\n|---|---|---|---|")
    print(f"| {config} | {planned / 2**20:,.0f} | {taken / 2**20:,.0f} | {taken / planned:.2f} |")


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description="A device beside the CPU and the plan.")
    parser.add_argument("what", choices=("correctness", "memory"))
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--config", default="gpt2_124m", help="of which memory is measured")
    parser.add_argument("directives", nargs="*", help="such as set:batch_size=8")
    arguments = parser.parse_intermixed_args()
    if arguments.what == "memory":
        memory(arguments.device, arguments.config, arguments.directives)
    elif not correctness(arguments.device):
        sys.exit(1)


if __name__ == "__main__":
    main()
