"""Started by torchrun: parts that look at gradients and weights, where these are dealt out."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from fidgpt.train import ClipByValue, Ema, StepMeters
from fidgpt.train.steps.gradients import GradientNorms


def model(mesh: DeviceMesh | None) -> nn.Module:
    """A layer and a vector with gradients; over a mesh in rows, but for the vector."""
    drawn = torch.Generator().manual_seed(0)
    made = nn.Module()
    for name, shape in {"matrix": (5, 3), "other": (4, 2), "vector": (7,)}.items():
        values, gradient = (torch.randn(shape, generator=drawn) for _ in range(2))
        if mesh is not None and name != "vector":
            values, gradient = (distribute_tensor(t, mesh, [Shard(0)]) for t in (values, gradient))
        parameter = nn.Parameter(values)
        parameter.grad = gradient
        made.register_parameter(name, parameter)
    return made


def numbers(mesh: DeviceMesh | None) -> dict[str, object]:
    """What is measured of a step, and the weights and their average after it."""
    net = model(mesh)
    average = Ema(beta=0.5)
    average.begin(net)
    optimizer = torch.optim.SGD([{"params": [*net.parameters()], "name": "all"}], lr=0.5)
    ClipByValue(1.0)(net.parameters())
    norms = GradientNorms(net.parameters())
    with StepMeters().measuring(optimizer.param_groups, norms) as measured:
        norms.clip(0.25)
        optimizer.step()
    average.update(net, step=0)
    average.exchange(net)
    held = {name: whole(p) for name, p in net.named_parameters()}
    one = norms.over([net.get_parameter("matrix")])
    gradient = net.get_parameter("other").grad
    assert gradient is not None
    gradient.fill_(torch.nan)
    spoilt = GradientNorms(net.parameters()).not_finite()
    names = [name for name, p in net.named_parameters() if any(p is other for other in spoilt)]
    return {"measured": measured, "total": norms.total, "one": one, "spoilt": names, **held}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    full = getattr(tensor, "full_tensor", None)
    return tensor.detach() if full is None else full().detach()


def main(path: Path) -> None:
    dist.init_process_group("gloo")
    try:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        found = {"dealt": numbers(mesh), "whole": numbers(None)}
        torch.save(found, path / f"rank{dist.get_rank()}.pt")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
