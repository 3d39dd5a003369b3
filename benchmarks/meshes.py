"""Train small models from one seed on many meshes of processes, and compare every loss.

    python benchmarks/meshes.py
    python benchmarks/meshes.py --steps=5 --processes 2 4

Prints a Markdown table: the loss at the last step, and the largest difference at any step from the
losses of one process that computes the whole batch at once. The exit status is 1 if one exceeds
1e-5. All processes are on this machine and compute in float32 on its CPU.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

BOUND = 1e-5
COMMON = [
    "config:debug",
    "fiddler:use_float32",
    "set:batch_size=8",
    "set:seq_len=64",
    "set:model.num_layers=3",
    "tag:HeadDim=8",
]
MODELS = {
    "dense": [],
    "mixture": ["fiddler:use_moe(num_experts=4, ffn_dim=32)"],
}
MICRO_BATCHES = "micro_batch_size=2"
ULYSSES = "ulysses"
SEQUENCE = "sequence"
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero_bubble", "zero_bubble_v", "dual_pipe_v")
# Arguments of `use_mesh` by the number of processes, and what else changes.
MESHES: dict[int, list[tuple[dict[str, int], str]]] = {
    1: [({}, ""), ({}, MICRO_BATCHES)],
    2: [
        ({"replicate": 2}, ""),
        ({"replicate": 2}, MICRO_BATCHES),
        ({"shard": 2}, ""),
        ({"context": 2}, ""),
        ({"context": 2}, ULYSSES),
        ({"tensor": 2}, ""),
        ({"shard": 2, "expert": 2}, ""),
        ({"context": 2, "expert": 2}, ""),
        *(({"pipeline": 2}, schedule) for schedule in SCHEDULES),
    ],
    4: [
        ({"replicate": 4}, ""),
        ({"shard": 4}, ""),
        ({"context": 4}, ""),
        ({"context": 4}, ULYSSES),
        ({"replicate": 2, "shard": 2}, ""),
        ({"replicate": 2, "context": 2}, ""),
        ({"shard": 2, "context": 2}, ""),
        ({"shard": 2, "context": 2}, ULYSSES),
        ({"shard": 2, "context": 2}, MICRO_BATCHES),
        ({"tensor": 4}, ""),
        ({"shard": 2, "tensor": 2}, ""),
        ({"context": 2, "tensor": 2}, ""),
        ({"context": 2, "tensor": 2}, ULYSSES),
        ({"shard": 4, "expert": 2}, ""),
        ({"shard": 2, "tensor": 2, "expert": 2}, SEQUENCE),
        ({"pipeline": 2, "shard": 2, "expert": 2}, "interleaved"),
        ({"pipeline": 2, "tensor": 2}, "1f1b"),
    ],
    8: [
        ({"shard": 8}, ""),
        ({"shard": 4, "context": 2}, ""),
        ({"shard": 2, "context": 4}, ""),
        ({"replicate": 2, "context": 4}, ULYSSES),
        ({"replicate": 2, "shard": 2, "context": 2}, ""),
        ({"shard": 2, "context": 2, "tensor": 2}, ""),
        ({"pipeline": 2, "shard": 2, "tensor": 2, "expert": 2}, "zero_bubble"),
    ],
}


def directives(model: str, sizes: dict[str, int], change: str, *, steps: int) -> list[str]:
    """Return the values of --config for a model on a mesh."""
    chosen = [*COMMON, *MODELS[model], f"set:num_steps={steps}"]
    if model == "dense":
        sizes = {name: size for name, size in sizes.items() if name != "expert"}
    if sizes:
        arguments = ", ".join(f"{name}={size}" for name, size in sizes.items())
        chosen.append(f"fiddler:use_mesh({arguments})")
    if change == ULYSSES:
        chosen.append("fiddler:use_ulysses")
    if change == SEQUENCE:
        chosen.append("fiddler:use_sequence_parallel")
    if change in SCHEDULES:
        chosen += [f"fiddler:use_pipeline(schedule={change})", "set:micro_batch_size=1"]
    if change == MICRO_BATCHES:
        chosen.append(f"set:{change}")
    return chosen


def train(chosen: Sequence[str], *, steps: int) -> list[float]:
    """Return the loss of each step; every process of the mesh calls this."""
    import torch

    from fidgpt import train
    from fidgpt.compose.composition import compose
    from fidgpt.runs.building import build_trainer

    trainer = build_trainer(compose(chosen).config)
    with trainer.parallel as parallel:
        trainer.prepare()
        state = trainer.setup(train.RunDirectory(Path("unused"), texts={}))
        losses = []
        for step in range(steps):
            torch.manual_seed(step)
            rows = trainer.stream.batch(
                step, rank=parallel.data_rank, world_size=parallel.data_size
            )
            losses.append(trainer.update(state, rows)["loss"])
    return losses


def work(path: Path, *, steps: int) -> None:
    """Train on every mesh of as many processes as this one is of, and leave the losses."""
    from fidgpt.parallel import DataParallel

    with DataParallel() as processes:
        left = [
            {model: train(directives(model, *mesh, steps=steps), steps=steps) for model in MODELS}
            for mesh in MESHES[processes.world_size]
        ]
        if processes.is_main:
            path.write_text(json.dumps(left))


def measure(processes: Sequence[int], *, steps: int) -> dict[int, list[dict[str, list[float]]]]:
    """Return the losses of each model on each mesh, by the number of processes."""
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in processes:
            path = Path(folder) / f"{count}.json"
            launch = ["-m", "torch.distributed.run", f"--nproc-per-node={count}", "--standalone"]
            command = [*launch, __file__, f"--steps={steps}", f"--worker={path}"]
            environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            subprocess.run([sys.executable, *command], env=os.environ | environment, check=True)
            measured[count] = json.loads(path.read_text())
    return measured


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of each run")
    parser.add_argument("--processes", type=int, nargs="*", default=[*MESHES], choices=[*MESHES])
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        work(arguments.worker, steps=arguments.steps)
        return 0
    measured = measure(sorted({1, *arguments.processes}), steps=arguments.steps)
    whole, worst = measured[1][0], 0.0
    print("| processes | mesh |", " | ".join(f"{m} loss | differs by" for m in MODELS), "|")
    print("|--:|---|" + "--:|--:|" * len(MODELS))
    for count, runs in measured.items():
        for (sizes, change), losses in zip(MESHES[count], runs, strict=True):
            names = [f"{name}={size}" for name, size in sizes.items()] + [change] * bool(change)
            cells = [str(count), ", ".join(names) or "one process"]
            for model in MODELS:
                pairs = zip(losses[model], whole[model], strict=True)
                difference = max(abs(one - other) for one, other in pairs)
                worst = max(worst, difference)
                cells += [f"{losses[model][-1]:.6f}", f"{difference:.1e}"]
            print("|", " | ".join(cells), "|")
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit(main())
