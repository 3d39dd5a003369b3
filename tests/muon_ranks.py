"""Steps of Muon on processes that hold copies or parts of matrices: the script that each runs."""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils.flop_counter import FlopCounterMode

from fidgpt.optim import Muon
from fidgpt.parallel import DataParallel, Mesh, MeshParallel
from fidgpt.parallel.owners import Owners
from fidgpt.parallel.placement import Part, whole_of
from fidgpt.parallel.tensor import TensorParallel

# Two stacks, of as many matrices as processes and one more; the others are wide, tall and narrow.
SHAPES = ((4, 8, 12), (5, 6, 6), (12, 16), (16, 8), (32, 4), (7, 3), (12, 12), (12, 12))
MESHES = {
    "replicate": Mesh(replicate=4),
    "shard": Mesh(shard=4),
    "tensor": Mesh(tensor=4),
    "hybrid": Mesh(replicate=2, shard=2),
    "shard_tensor": Mesh(shard=2, tensor=2),
}


def drawn(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def stepped(parameters: list[nn.Parameter], gradients: list[list[Tensor]], workers=None) -> int:
    """Take a step for each list of gradients; return the operations of this process."""
    optimizer = Muon([{"params": parameters, "orthogonal": True}], lr=0.1)
    if workers is not None:
        optimizer.workers = workers
    with FlopCounterMode(display=False) as counter:
        for step in gradients:
            for parameter, gradient in zip(parameters, step, strict=True):
                parameter.grad = gradient
            optimizer.step()
    return counter.get_total_flops()


def on(mesh: Mesh) -> dict[str, object]:
    """What steps on a mesh give: whole weights, and the operations of this process."""
    with MeshParallel(mesh, tensor=TensorParallel()) as parallel:
        axis, fsdp = parallel.places.axes["tensor"], parallel.places.fsdp
        parts = [Part(axis, len(s) - 1, s[-1], _parts(s, axis.size)) for s in SHAPES]

        def held(whole: Tensor, part: Part) -> Tensor:
            own = part.cut(whole) if mesh.tensor > 1 else whole
            return own if fsdp is None else _sharded(own, fsdp)

        def all_held(seed: int) -> list[Tensor]:
            return [held(one, part) for one, part in zip(drawn(seed), parts, strict=True)]

        parameters = [nn.Parameter(one) for one in all_held(0)]
        for parameter, part in zip(parameters, parts, strict=True):
            if mesh.tensor > 1:
                vars(parameter)["placement"] = part
        operations = stepped(parameters, [all_held(1), all_held(2)], Owners(parallel))
        return {"weights": [whole_of(p, p) for p in parameters], "operations": operations}


def _parts(shape: tuple[int, ...], size: int) -> int:
    """As many as processes, or half as many, so that two hold the same."""
    return size if shape[-1] != 16 else size // 2


def _sharded(whole: Tensor, mesh: DeviceMesh) -> Tensor:
    placements = [Replicate()] * (mesh.ndim - 1) + [Shard(0)]
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)


if __name__ == "__main__":
    with DataParallel() as processes:
        made = {name: on(mesh) for name, mesh in MESHES.items()}
        torch.save(made, Path(sys.argv[1], f"rank{processes.rank}.pt"))
