"""An axis of a user's own: processes with different rows share the hidden units of each MLP.

Run as a script, it trains with the axis on two processes, and leaves what each gives in a file.
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fiddle as fdl
import torch
import torch.distributed as dist
import torch.nn.functional as F
from small_models import whole_weights
from torch import Tensor, nn

from fidgpt import configs, fiddlers, train
from fidgpt.model import SwiGLU
from fidgpt.parallel import Axis, AxisPart, Mesh, MeshSizes, Weights, axis_size
from fidgpt.placement import Shard
from fidgpt.processes import Processes
from fidgpt.processes.collectives import all_max, gathered, scattered
from fidgpt.processes.ranks import run_ranks
from fidgpt.runs.building import build_trainer
from fidgpt.runs.shrinking import shrink
from fidgpt.train.mesh_check import check_mesh
from fidgpt.train.trackers.trackers import read_rows

UNITS = Axis(name="units", splits_rows=True, weights=Weights.PARTS)
BORROWED = Axis(name="units", weights=Weights.PARTS, borrows=("shard",))
_ROWS = 0  # the dimension of a stream [batch, seq, hidden]


@dataclass(frozen=True, kw_only=True)
class UnitsMesh(Mesh):
    """A mesh with a further axis.

    Args:
      units: processes that share the hidden units of MLPs, each with its own rows.
    """

    units: int = axis_size(UNITS)


@dataclass(frozen=True, kw_only=True)
class BorrowingMesh(Mesh):
    """A mesh whose further axis has the processes of another one, as experts will.

    Args:
      units: processes of those that share weights, which share the hidden units of MLPs instead.
    """

    units: int = axis_size(BORROWED)


class UnitsParallel(AxisPart):
    """Computes some hidden units of each MLP for the rows of all processes of the axis."""

    def check(self, model: nn.Module, *, mesh: MeshSizes, seq_len: int) -> None:
        for mlp in _mlps(model):
            if mlp.up.out_features % (size := mesh.sizes["units"]):
                raise ValueError(f"units={size} must divide {mlp.up.out_features}.")

    def __call__(self, model: nn.Module, axis: Processes) -> None:
        for mlp in _mlps(model):
            for projection, dim in ((mlp.gate, 0), (mlp.up, 0), (mlp.down, 1)):
                whole = projection.weight
                shard = Shard(axis, dim, whole.shape[dim], axis.size)
                projection.weight = shard.parameter(whole)
            lengths: list[int] = []
            mlp.register_forward_pre_hook(partial(_gather_rows, axis, lengths))
            mlp.register_forward_hook(partial(_return_rows, axis, lengths))


def _mlps(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, SwiGLU)]


def _gather_rows(
    axis: Processes, lengths: list[int], module: nn.Module, args: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    x = args[0]
    longest = int(all_max(torch.tensor(len(x)), axis))
    lengths.append(len(x))
    return (gathered(F.pad(x, (0, 0, 0, 0, 0, longest - len(x))), axis, _ROWS),)


def _return_rows(
    axis: Processes, lengths: list[int], module: nn.Module, args: object, out: Tensor
) -> Tensor:
    return scattered(out, axis, _ROWS)[: lengths.pop()]


MESHES = {"units": UnitsMesh(units=2), "borrowed": BorrowingMesh(shard=2, units=2)}


def config(mesh: Mesh | None = None) -> Any:
    """`debug` in float32, with unequal numbers of micro-batches."""
    cfg: Any = configs.debug()
    fiddlers.use_float32(cfg)
    cfg.batch_size, cfg.micro_batch_size, cfg.num_steps, cfg.checkpoints.every = 5, 1, 4, 2
    cfg.trackers = cfg.trackers[1:]
    cfg.optimizer = fdl.Partial(torch.optim.AdamW, lr=1e-3)
    if mesh is not None:
        fiddlers.use_mesh(cfg)
        cfg.parallel.mesh = fdl.Config(type(mesh), **mesh.sizes)
        cfg.parallel.others = {"units": fdl.Config(UnitsParallel)}
    return cfg


def trained(cfg: fdl.Config, path: Path, **options: Any) -> dict[str, Any]:
    """What a run leaves: the losses, the norms of gradients and the whole weights."""
    trainer = build_trainer(cfg)
    with trainer.parallel:
        trainer.train(train.RunDirectory(path, texts={}), **options)
        weights = whole_weights(trainer.model)
    held = sum(parameter.numel() for parameter in trainer.model.parameters())
    rows = [(row["loss"], row["grad_norm"]) for row in read_rows(path / "metrics.jsonl")]
    return {"rows": rows, "weights": weights, "held": held}


def check(mesh: Mesh) -> dict[str, Any]:
    """What `--check_parallel` finds: how each gradient differs, and the first output that does."""
    small, left = shrink(config(mesh), mesh=mesh, build=build_trainer)
    assert not left, left
    alone, shared = build_trainer(small), build_trainer(small)
    comparison = check_mesh(alone, shared, num_processes=mesh.size)
    return {"differences": comparison.differences, "first": comparison.first}


def main(folder: Path) -> None:
    checked = {name: check(mesh) for name, mesh in MESHES.items()}

    def leave() -> None:
        left = {}
        for name, mesh in MESHES.items():
            whole = trained(config(mesh), folder / name)
            resumed = trained(config(mesh), folder / name, resume=True, resume_step=2)
            left[name] = {"whole": whole, "resumed": resumed}
        torch.save(left, folder / f"rank{dist.get_rank()}.pt")

    run_ranks(2, leave)
    one = trained(config(), folder / "one")
    # A checkpoint of the mesh is restored on one process.
    resume = {"resume": True, "resume_step": 2}
    restored = {name: trained(config(), folder / name, **resume) for name in MESHES}
    torch.save({"one": one, "restored": restored, "checked": checked}, folder / "alone.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
