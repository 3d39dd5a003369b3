"""Run by each of two processes: components that use sharded gradients and weights."""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from fidgpt.optim import Adafactor, Muon
from fidgpt.train import ClipByValue, Ema, StepMeters
from fidgpt.train.step import GradientNorms


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


def numbers(mesh: DeviceMesh | None) -> dict[str, Any]:
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
    not_finite = GradientNorms(net.parameters()).not_finite()
    names = [name for name, p in net.named_parameters() if any(p is other for other in not_finite)]
    return {
        "measured": measured,
        "total": norms.total,
        "one": one,
        "spoilt": names,
        **held,
    } | stepped(mesh)


def stepped(mesh: DeviceMesh | None) -> dict[str, torch.Tensor]:
    """Weights after two steps of optimizers that ask for whole matrices; three are in the stack.

    Of one number, one of the processes holds nothing.
    """
    held = {}
    for name, make in {"muon": _muon, "adafactor": _adafactor}.items():
        drawn = torch.Generator().manual_seed(1)
        parameters = []
        for shape in ((3, 4, 5), (4, 3), (5,), (1,)):
            values = torch.randn(shape, generator=drawn)
            if mesh is not None:
                values = distribute_tensor(values, mesh, [Shard(0)])
            parameters.append(nn.Parameter(values))
        optimizer = make(parameters)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = (parameter.detach() * 3).sin()
            optimizer.step()
            if mesh is not None:
                _restore(optimizer, mesh)
        held |= {f"{name}/{number}": whole(p) for number, p in enumerate(parameters)}
    return held


def _restore(optimizer: torch.optim.Optimizer, mesh: DeviceMesh) -> None:
    """Makes of what every process has what a checkpoint gives back."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if value.dim() and not hasattr(value, "device_mesh"):
                state[name] = distribute_tensor(value, mesh, [Replicate()])


def _muon(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    stack, *others = parameters
    return Muon([{"params": [stack], "orthogonal": True}, {"params": others}], lr=0.1)


def _adafactor(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return Adafactor(parameters, lr=0.1, weight_decay=0.1)


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
