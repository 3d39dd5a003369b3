"""Run by each of two processes: `python two_processes.py TASK FOLDER ...` saves what it returns."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from small_models import whole_weights
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from fidgpt import configs, fiddlers, graph, optim, parallel, train
from fidgpt.data import Batch
from fidgpt.model import Transformer
from fidgpt.model.moe import MoE
from fidgpt.placement import whole_of
from fidgpt.runs.building import build_trainer
from fidgpt.train.gradients import GradientNorms
from fidgpt.train.state import TrainState

HARMFUL = 4  # the number of a batch
LATE = 0.1  # seconds that the second process takes longer for a batch


def plain(path: Path) -> dict[str, Any]:
    """Trains `debug` into `path`/two; each rank keeps the tokens that it read."""
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    cfg.trackers = cfg.trackers[1:]
    trainer = build_trainer(cfg)
    seen = []
    read = trainer.stream.batch

    def remember(step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        time.sleep(LATE * rank)
        seen.append(read(step, rank=rank, world_size=world_size))
        return seen[-1]

    trainer.stream.batch = remember
    with trainer.parallel:  # one group for both: a second may find the addresses of the first
        refused = _refusal_of_disagreement(trainer, path)
        trainer.train(train.RunDirectory(path / "two", texts={}))
    model = trainer.model
    assert isinstance(model, Transformer)
    return {
        # Checks read the first batches.
        "tokens": torch.stack([batch.tokens for batch in seen[-cfg.num_steps :]]),
        "whole": torch.stack([read(step).tokens for step in range(cfg.num_steps)]),
        "table": model.embedding.weight.detach(),
        "refused": refused,
        "tied": model.embedding.weight is model.unembedding.weight,
    }


def _refusal_of_disagreement(trainer: train.Trainer, path: Path) -> str:
    """Return the error of a rank whose config differs from another one's."""
    identity = {"num_steps": "5", "seed": os.environ["RANK"], "vocab_size": os.environ["RANK"]}
    try:
        trainer.train(train.RunDirectory(path / "other", texts={}, identity=identity))
    except parallel.ParallelError as error:
        return str(error)
    return "it trained"


def mixture(path: Path) -> Tensor:
    """Trains the config of `path`/one into `path`/two; returns the first router's bias."""
    trainer = build_trainer(graph.load((path / "one" / "config.json").read_text()))
    trainer.train(train.RunDirectory(path / "two", texts={}))
    moe = trainer.model.get_submodule("blocks.0.mlp")
    assert isinstance(moe, MoE) and moe.router.selection_bias is not None
    return moe.router.selection_bias.bias


def harmed(path: Path, share: str) -> dict[str, Any]:
    """Trains into `path` by parts of a step, on two of which one does harm."""
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    if share != "use_data_parallel":
        getattr(fiddlers, share)(cfg)
    fiddlers.use_roll_back(cfg)
    fiddlers.use_skip_step(cfg)
    fiddlers.use_ema(cfg, beta=0.5)
    fiddlers.use_step_meters(cfg, every=3)
    cfg.trackers, cfg.samples = cfg.trackers[1:], None
    cfg.num_steps, cfg.checkpoints.every = 7, 2
    made = build_trainer(cfg)
    launch, setup = made.step.launch, made.setup
    kept: list[TrainState] = []

    def harming(run: Any, state: TrainState, *batch: Any, **options: Any) -> Any:
        if state.step + state.shift == HARMFUL and made.parallel.rank == 1:
            with torch.no_grad():  # of this process's own weights
                weight = [*state.model.parameters()][-1]
                getattr(weight, "to_local", lambda: weight)().fill_(torch.nan)
        return launch(run, state, *batch, **options)

    def keep(*arguments: Any, **options: Any) -> TrainState:
        kept.append(setup(*arguments, **options))
        return kept[-1]

    made.step.launch = harming
    made.setup = keep
    with made.parallel:
        made.train(train.RunDirectory(path / "run", texts={}))
        (state,) = kept
        left = whole_weights(state.model)
        with state.averaged():
            average = whole_weights(state.model)
    guards = {name: part.state_dict() for name, part in state.stateful.items() if name != "average"}
    return {"model": left, "average": average, "guards": guards}


def norms(path: Path) -> dict[str, Any]:
    """What components measure and make of sharded gradients and weights, and of whole ones."""
    with parallel.DataParallel() as processes:
        mesh = init_device_mesh("cpu", (processes.world_size,))
        return {
            "sharded": _measured(mesh) | _stepped(mesh, processes),
            "whole": _measured(None) | _stepped(None, processes),
        }


def _measured(mesh: DeviceMesh | None) -> dict[str, Any]:
    """What is measured of a step, and the weights and their average after it."""
    drawn = torch.Generator().manual_seed(0)
    net = nn.Module()
    for name, shape in {"matrix": (5, 3), "other": (4, 2), "vector": (7,)}.items():
        values, gradient = (torch.randn(shape, generator=drawn) for _ in range(2))
        if mesh is not None and name != "vector":
            values, gradient = (distribute_tensor(t, mesh, [Shard(0)]) for t in (values, gradient))
        parameter = nn.Parameter(values)
        parameter.grad = gradient
        net.register_parameter(name, parameter)
    average = train.Ema(beta=0.5)
    average.begin(net)
    optimizer = torch.optim.SGD([{"params": [*net.parameters()], "name": "all"}], lr=0.5)
    train.ClipByValue(1.0)(net.parameters())
    found = GradientNorms(net.parameters())
    with train.StepMeters().measuring(optimizer.param_groups, found) as measured:
        found.clip(0.25)
        optimizer.step()
    average.update(net, step=0)
    average.exchange(net)
    held = whole_weights(net)
    one = found.norm_of([net.get_parameter("matrix")])
    gradient = net.get_parameter("other").grad
    assert gradient is not None
    gradient.fill_(torch.nan)
    not_finite = GradientNorms(net.parameters()).not_finite()
    names = [name for name, p in net.named_parameters() if any(p is other for other in not_finite)]
    numbers = {name: float(value) for name, value in measured.items()}
    return {"measured": numbers, "total": found.total, "one": one, "not finite": names, **held}


def _stepped(mesh: DeviceMesh | None, processes: parallel.DataParallel) -> dict[str, Tensor]:
    """Weights after two steps of optimizers that need whole matrices; three are in the stack.

    Of one number, one of the processes holds nothing.
    """
    held = {}
    for name in ("muon", "adafactor"):
        drawn = torch.Generator().manual_seed(1)
        parameters = []
        for shape in ((3, 4, 5), (4, 3), (5,), (1,)):
            values = torch.randn(shape, generator=drawn)
            if mesh is not None:
                values = distribute_tensor(values, mesh, [Shard(0)])
            parameters.append(nn.Parameter(values))
        groups = [{"params": parameters[:1], "orthogonal": True}, {"params": parameters[1:]}]
        if name == "muon":
            optimizer = optim.Muon(groups, lr=0.1)
        else:
            optimizer = optim.Adafactor(parameters, lr=0.1, weight_decay=0.1)
            optimizer.share_work(processes.world)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = (parameter.detach() * 3).sin()
            optimizer.step()
            if mesh is not None:
                _replicate(optimizer, mesh)
        held |= {f"{name}/{number}": whole_of(p.detach(), p) for number, p in enumerate(parameters)}
    return held


def _replicate(optimizer: torch.optim.Optimizer, mesh: DeviceMesh) -> None:
    """Makes of what every process has what a checkpoint gives back."""
    for state in optimizer.state.values():
        for name, value in state.items():
            if value.dim() and not hasattr(value, "device_mesh"):
                state[name] = distribute_tensor(whole_of(value, value), mesh, [Replicate()])


if __name__ == "__main__":
    task, folder, *arguments = sys.argv[1:]
    tasks = {each.__name__: each for each in (plain, mixture, harmed, norms)}
    found = tasks[task](Path(folder), *arguments)
    torch.save(found, Path(folder) / f"rank{os.environ['RANK']}.pt")
