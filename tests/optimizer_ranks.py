"""Steps of optimizers on processes that hold copies or parts of matrices: what each runs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import tensor as dtensor
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.flop_counter import FlopCounterMode

from fidgpt.optim import Adafactor, Muon
from fidgpt.parallel import DataParallel, Mesh, MeshParallel, TensorParallel
from fidgpt.placement import Shard, whole_of

# Two stacks, of as many matrices as processes and one more; the others are wide, tall and narrow.
MATRICES = ((4, 8, 12), (5, 6, 6), (12, 16), (16, 8), (32, 4), (7, 3), (12, 12), (12, 12))
SHAPES = (*MATRICES, (9,), (1,))  # of which some processes hold nothing
MESHES = {
    "replicate": Mesh(replicate=4),
    "shard": Mesh(shard=4),
    "tensor": Mesh(tensor=4),
    "hybrid": Mesh(replicate=2, shard=2),
    "shard_tensor": Mesh(shard=2, tensor=2),
}


def drawn(seed: int, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def stepped(optimizer: torch.optim.Optimizer, gradients: list[list[Tensor]]) -> int:
    """Take a step for each list of gradients; return the operations of this process."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    with FlopCounterMode(display=False) as counter:
        for step in gradients:
            for parameter, gradient in zip(parameters, step, strict=True):
                parameter.grad = gradient
            optimizer.step()
    return counter.get_total_flops()


def muon(parameters: list[nn.Parameter]) -> Muon:
    return Muon([{"params": parameters, "orthogonal": True}], lr=0.1)


def adafactor(parameters: list[nn.Parameter]) -> Adafactor:
    return Adafactor(parameters, lr=0.1, weight_decay=0.1)


def whole_state(optimizer: Adafactor) -> list[Tensor]:
    """Rows, columns and second moments, whole."""
    return [
        whole_of(value, parameter) if name == "variance" else value
        for parameter, state in optimizer.state.items()
        for name, value in sorted(state.items())
        if name != "step"
    ]


def on(mesh: Mesh) -> dict[str, Any]:
    """What steps on a mesh give: whole weights, and the work and state of this process."""
    with MeshParallel(mesh, tensor=TensorParallel()) as parallel:
        axis, fsdp = parallel.places.axes["tensor"], parallel.places.fsdp

        def held(whole: Tensor, part: Shard) -> Tensor:
            own = part.cut(whole) if mesh.tensor > 1 else whole
            return own if fsdp is None else _sharded(own, fsdp)

        def all_held(seed: int, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
            wholes = drawn(seed, shapes)
            return [held(whole, place(whole.shape)) for whole in wholes]

        def place(shape: Sequence[int]) -> Shard:
            return Shard(axis, len(shape) - 1, shape[-1], _num_shards(shape, axis.size))

        def made(shapes: Sequence[tuple[int, ...]]) -> list[nn.Parameter]:
            parameters = [nn.Parameter(tensor) for tensor in all_held(0, shapes)]
            for parameter, shape in zip(parameters, shapes, strict=True):
                if mesh.tensor > 1:
                    vars(parameter)["shards"] = (place(shape),)
            return parameters

        matrices, everything = made(MATRICES), made(SHAPES)
        working, keeping = muon(matrices), adafactor(everything)
        working.share_work(parallel.world)
        keeping.share_work(parallel.world)
        work = stepped(working, [all_held(seed, MATRICES) for seed in (1, 2)])
        stepped(keeping, [all_held(seed, SHAPES) for seed in (1, 2)])
        return {
            "muon": [whole_of(p, p) for p in matrices],
            "operations": work,
            "adafactor": [whole_of(p, p) for p in everything],
            "state": whole_state(keeping),
        }


def _num_shards(shape: Sequence[int], size: int) -> int:
    """As many as processes, or half as many, so that two hold the same."""
    return size if shape[-1] != 16 else size // 2


def _sharded(whole: Tensor, mesh: DeviceMesh) -> Tensor:
    placements = [dtensor.Replicate()] * (mesh.ndim - 1) + [dtensor.Shard(0)]
    return dtensor.distribute_tensor(whole, mesh, placements, src_data_rank=None)


if __name__ == "__main__":
    with DataParallel() as processes:
        left = {name: on(mesh) for name, mesh in MESHES.items()}
        torch.save(left, Path(sys.argv[1], f"rank{processes.rank}.pt"))
