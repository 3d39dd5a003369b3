"""Run by each process: saves, or restores and compares, a model that is sharded over its ranks.

Arguments: `save`, `compare` or `break`, the run directory, and `sharded`, `replicated` or `beside`.
"""

import errno
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from fidgpt import parallel, train
from fidgpt.train.checkpoints import tensors as pieces

SIZES = (7, 5)  # no multiple of two or four: shards are uneven, and some are empty


class Odd(nn.Module):
    """A tied table, a matrix that no two ranks share evenly, a scalar and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(torch.randn(SIZES, generator=generator))
        self.tied = self.table
        self.short = nn.Parameter(torch.randn(1, 3, generator=generator))
        self.register_buffer("counts", torch.arange(4))

    def forward(self) -> Tensor:
        return self.table.sum() + self.tied.square().sum() + self.short.sum()


class Average:
    """Further state that is sharded as the weights are."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {name: p.detach() * 3 for name, p in model.named_parameters()}
        self.steps = 11

    def state_dict(self) -> dict:
        return {"weights": self.weights, "steps": self.steps}

    def load_state_dict(self, state: dict, /) -> None:
        self.weights, self.steps = state["weights"], state["steps"]


def make(*, sharded: bool, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer after some steps, alike on every rank, however it lies there."""
    model = Odd()
    if sharded:
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        model().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def whole(value: object) -> object:
    """The same with every tensor whole and plain."""
    if isinstance(value, DTensor):
        return value.full_tensor().clone()
    if isinstance(value, dict):
        return {key: whole(part) for key, part in value.items()}
    return value.clone() if isinstance(value, Tensor) else value


def everything(model: nn.Module, optimizer: torch.optim.Optimizer, average: Average) -> object:
    """All there is to compare."""
    moments = {"state": optimizer.state_dict()["state"]}
    return whole({"model": model.state_dict(), **moments, "average": average.state_dict()})


def outcome_of_a_full_disk(
    checkpoints: train.Checkpoints, run: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> str:
    """Return the error of this rank if rank 1 cannot write its part."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    checkpoints.save(run, step=1, model=model, optimizer=optimizer, state={})
    checkpoints.wait()
    if dist.get_rank() == 1:
        pieces.write_pieces = refuse
    try:
        checkpoints.save(run, step=2, model=model, optimizer=optimizer, state={})
        checkpoints.wait()
    except (train.CheckpointError, parallel.ParallelError) as error:
        return f"{dist.get_rank()} {type(error).__name__} {str(error).splitlines()[0]}"
    return "it was written"


def main(what: str, run: Path, kind: str) -> None:
    """Saves the state after three steps, or restores it over another one and compares."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    sharded = kind != "replicated" and dist.is_initialized()
    checkpoints = train.Checkpoints(
        every=1, keep_last=1, writer=train.BackgroundWriter() if kind == "beside" else None
    )
    model, optimizer = make(sharded=sharded, steps=3 if what == "save" else 0)
    average = Average(model)
    if what == "break":
        print(outcome_of_a_full_disk(checkpoints, run, model, optimizer), flush=True)
    elif what == "save":
        checkpoints.save(
            run, step=3, model=model, optimizer=optimizer, state={}, stateful={"average": average}
        )
        expected = everything(model, optimizer, average)
        model().backward()  # what goes on at once does not change what is saved
        optimizer.step()
        checkpoints.wait()
        if not dist.is_initialized() or dist.get_rank() == 0:
            torch.save(expected, run / "expected.pt")
    else:
        with torch.no_grad():
            model.get_parameter("short").zero_()
        average.weights = {name: p * 0 for name, p in average.weights.items()}
        checkpoints.restore(run, model=model, optimizer=optimizer, stateful={"average": average})
        found, expected = everything(model, optimizer, average), torch.load(run / "expected.pt")
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        table = model.get_parameter("table")
        assert model.get_parameter("tied") is table
        alike = [
            type(value) for value in (*optimizer.state[table].values(), *average.weights.values())
        ]
        assert not sharded or alike.count(DTensor) == 4, alike
        model().backward()  # and it can go on
        optimizer.step()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
