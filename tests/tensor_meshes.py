"""Gradients of small models on meshes: the script that each process runs, and its cases."""

import itertools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fiddle as fdl
import torch
from small_models import shrunk
from torch import Tensor, nn

from fidgpt import fiddlers, graph, model, train
from fidgpt.compose.runs import build_trainer
from fidgpt.parallel import DataParallel
from fidgpt.parallel.placement import whole_of
from fidgpt.train.state import TrainState, progress

Fiddler = Callable[[fdl.Config], object]


def mesh(*, sequence: bool = False, **sizes: int) -> Fiddler:
    """Return the change to a mesh of these sizes, with or without sequence parallelism."""

    def use(cfg: fdl.Config) -> None:
        fiddlers.use_mesh(cfg, **sizes)
        if sequence:
            fiddlers.use_sequence_parallel(cfg)

    return use


def sequential(**sizes: int) -> Fiddler:
    return mesh(sequence=True, **sizes)


def ulysses(**sizes: int) -> Fiddler:
    """Return the change to a mesh of these sizes, whose context exchanges heads."""

    def use(cfg: fdl.Config) -> None:
        fiddlers.use_mesh(cfg, **sizes)
        fiddlers.use_ulysses(cfg)

    return use


MESHES: dict[int, dict[str, Fiddler]] = {
    2: {
        "tensor": mesh(tensor=2),
        "sequence": sequential(tensor=2),
        "shard": mesh(shard=2),
        "replicate": mesh(replicate=2),
    },
    4: {
        "tensor": mesh(tensor=4),
        "shard_tensor": mesh(shard=2, tensor=2),
        "shard_sequence": sequential(shard=2, tensor=2),
        "context_sequence": sequential(context=2, tensor=2),
        "ulysses_tensor": ulysses(context=2, tensor=2),
        "replicate_sequence": sequential(replicate=2, tensor=2),
    },
}


def base(*changes: Fiddler) -> fdl.Config:
    """`base`, small, in float32 and with some changes."""
    cfg = shrunk("base")
    for change in changes:
        change(cfg)
    return cfg


def everything(cfg: fdl.Config) -> None:
    """Add what has no family of its own."""
    fiddlers.use_alibi(cfg)
    fiddlers.use_value_embeddings(cfg)
    fiddlers.use_z_loss(cfg)
    fiddlers.use_label_smoothing(cfg)
    use_all_biases(cfg)
    cfg.model.unembedding.softcap = 3.0
    cfg.loss.chunk_size = 100


def use_all_biases(cfg: fdl.Config) -> None:
    """Add a bias to every linear layer."""
    for block in graph.find(cfg.model, model.Attention) + graph.find(cfg.model, model.SwiGLU):
        block.bias = True


FAMILIES: dict[str, Callable[[], fdl.Config]] = {
    "llama": lambda: shrunk("llama3_2_1b"),
    "qwen3": lambda: shrunk("qwen3_0_6b"),
    "gemma3": lambda: shrunk("gemma3_1b"),
    "gpt2": lambda: shrunk("gpt2_124m"),
    "deepseek_v3": lambda: shrunk("deepseek_v3"),
    "gpt_oss": lambda: shrunk("gpt_oss_20b"),
    "mixtral": lambda: shrunk("mixtral_8x7b"),
    "olmo2": lambda: shrunk("olmo2_7b"),
    "lora": lambda: base(fiddlers.use_lora),
    "mtp": lambda: base(fiddlers.use_mtp),
    "packing": lambda: base(fiddlers.use_packing, fiddlers.use_document_mask),
    "everything": lambda: base(everything),
    "dropout": lambda: base(dropping),
    "muon": lambda: base(fiddlers.use_moe, fiddlers.use_muon),
    "adafactor": lambda: base(fiddlers.use_adafactor, use_all_biases),
}


def spread(tensor: Tensor, generator: torch.Generator | None) -> None:
    """Initialize so that no gradient is zero, as those of adapters are at first."""
    tensor.normal_(std=0.2, generator=generator)
    if tensor.dim() == 1:
        tensor += 0.5


@torch.no_grad()
def load(model: nn.Module) -> None:
    """Copy whole tensors into a model, as those of another run."""
    for number, parameter in enumerate(model.parameters()):
        values = torch.empty(parameter.shape)
        spread(values, torch.Generator().manual_seed(number))
        parameter.copy_(values)


def gradients(family: str, change: Fiddler | None = None) -> dict[str, Any]:
    """What two steps of training give: rows of metrics, and the first step's whole gradients."""
    cfg = FAMILIES[family]()
    cfg.batch_size = 4
    if change is not None:
        change(cfg)
    trainer = build_trainer(cfg)
    for parameter in trainer.model.parameters():
        parameter.init = spread  # pyright: ignore[reportAttributeAccessIssue]
    if family == "qwen3":
        trainer.weights = load
    kept: dict[str, Tensor] = {}

    def keep(parameters: Iterable[nn.Parameter]) -> None:
        for name, one in state.model.named_parameters():
            if one.grad is not None:
                kept.setdefault(name, whole_of(one.grad, one).clone())

    trainer.gradient_transform = keep
    with trainer.parallel as parallel:
        trainer.prepare()
        state = trainer.setup(train.RunDirectory(Path("unused"), texts={}))
        start = whole_weights(state)
        rows = [
            trainer.update(
                state,
                trainer.data.batch(step, rank=parallel.data_rank, world_size=parallel.data_size),
            )
            for step in range(2)
        ]
        return {"start": start, "rows": rows, "gradients": kept, "end": whole_weights(state)}


SAVED: dict[str, Fiddler] = {
    "replicate": mesh(replicate=4),
    "shard": mesh(shard=4),
    "tensor": mesh(tensor=4),
    "shard_tensor": mesh(shard=2, tensor=2),
    "replicate_sequence": sequential(replicate=2, tensor=2),
}


class Run:
    """A run with every kind of state, which is saved or restored on one mesh.

    Args:
      optimizer: fiddler of the optimizer.
      change: to the mesh; None for one process.
    """

    def __init__(self, optimizer: Fiddler, change: Fiddler | None = None) -> None:
        cfg = base(everything, optimizer, fiddlers.use_ema)
        cfg.batch_size, cfg.model.num_layers = 4, 1
        if change is not None:
            change(cfg)
        self.trainer = build_trainer(cfg)

    def save(self, path: Path) -> dict[str, Tensor]:
        """Take two steps and save; return the whole state."""
        trainer = self.trainer
        with trainer.parallel as parallel:
            trainer.prepare()
            state = trainer.setup(train.RunDirectory(path, texts={}))
            for step in range(2):
                rank, size = parallel.data_rank, parallel.data_size
                trainer.update(state, trainer.data.batch(step, rank=rank, world_size=size))
            trainer.checkpoints.save(
                path,
                step=2,
                model=state.model,
                optimizer=state.optimizer,
                stateful=state.stateful,
                state=progress(trainer.data, state),
            )
            return whole_state(state)

    def restore(self, path: Path) -> dict[str, Tensor]:
        """Resume; return the whole state."""
        with self.trainer.parallel:
            self.trainer.prepare()
            run = train.RunDirectory(path, texts={})
            return whole_state(self.trainer.setup(run, resume=True))


def whole_state(state: TrainState) -> dict[str, Tensor]:
    """Return weights, optimizer state and averages, whole and by name."""
    found = whole_weights(state)
    for name, parameter in state.model.named_parameters():
        for key, value in state.optimizer.state[parameter].items():
            divided = value.shape == parameter.shape
            found[f"{name}/{key}"] = whole_of(value, parameter if divided else None).clone()
    with state.averaged():
        found |= {f"{name}/average": one for name, one in whole_weights(state).items()}
    return found


def whole_weights(state: TrainState) -> dict[str, Tensor]:
    return {n: whole_of(p.detach(), p).clone() for n, p in state.model.named_parameters()}


def dropping(cfg: fdl.Config) -> None:
    """Drop elements of embeddings, of attention weights and of branches."""
    cfg.model.dropout = cfg.model.blocks[0].dropout = 0.2
    cfg.model.blocks[0].attention.dropout = 0.2


OPTIMIZERS: dict[str, Fiddler] = {
    "adamw": lambda cfg: None,
    "muon": fiddlers.use_muon,
    "adafactor": fiddlers.use_adafactor,
}


def saved_and_restored(path: Path, optimizer: Fiddler, *, each: bool) -> dict[str, Any]:
    """Save under every mesh, and restore each under every other or the next; return what differs.

    Args:
      path: folder that holds the checkpoint of one process, and `alone.pt`, its state.
      optimizer: fiddler of the optimizer.
      each: restore each checkpoint under every mesh; else under the next one.
    """
    states = {name: Run(optimizer, change).save(path / name) for name, change in SAVED.items()}
    states["alone"] = torch.load(path / "alone.pt")
    pairs = [*itertools.product(states, SAVED)]
    if not each:  # with six of the one and five of the other, this meets every mesh
        pairs = [*zip(states, itertools.cycle([*SAVED][1:] + [*SAVED][:1]), strict=False)]
    differ = {
        f"{here} to {there}": [
            name
            for name, value in Run(optimizer, SAVED[there]).restore(path / here).items()
            if name not in states[here] or not torch.equal(states[here][name], value)
        ]
        for here, there in pairs
    }
    return {"differ": differ, "states": states}


def main(path: Path, cases: list[str]) -> None:
    """Leave what every case gave this rank, in one file."""
    with DataParallel() as processes:
        if cases[0] in OPTIMIZERS:
            made = saved_and_restored(path, OPTIMIZERS[cases[0]], each=cases[1:] == ["each"])
            torch.save(made, path / f"rank{processes.rank}.pt")
            return
        made = {}
        for case in cases:
            family, name = case.split("/")
            made[case] = gradients(family, MESHES[processes.world_size][name])
        torch.save(made, path / f"rank{processes.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
