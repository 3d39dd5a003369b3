"""Bytes that a process holds on each mesh of two: the script that each process runs.

It prints them as a row of the table in benchmarks/parallel/README.md.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fiddle as fdl
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fidgpt import configs, fiddlers, train
from fidgpt.data import Batch
from fidgpt.parallel import DataParallel
from fidgpt.runs.building import build_trainer

HIDDEN, FFN, HEAD, VOCAB, LAYERS, TOKENS, ROWS = 128, 384, 32, 512, 2, 64, 4
Change = Callable[[fdl.Config], object]


def sequence(cfg: fdl.Config) -> None:
    fiddlers.use_mesh(cfg, tensor=2)
    fiddlers.use_sequence_parallel(cfg)


def ulysses(cfg: fdl.Config) -> None:
    fiddlers.use_mesh(cfg, context=2)
    fiddlers.use_ulysses(cfg)


MESHES: dict[str, Change] = {
    "replicate=2": lambda cfg: fiddlers.use_mesh(cfg, replicate=2),
    "shard=2": lambda cfg: fiddlers.use_mesh(cfg, shard=2),
    "tensor=2": lambda cfg: fiddlers.use_mesh(cfg, tensor=2),
    "tensor=2, sequence": sequence,
    "context=2": lambda cfg: fiddlers.use_mesh(cfg, context=2),
    "context=2, ulysses": ulysses,
}


def small(change: Change | None = None) -> fdl.Config:
    """A model of a few layers in float32, with RoPE, SwiGLU and a table of its own at the end."""
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    fiddlers.untie_embeddings(cfg)
    cfg.model.hidden_dim, cfg.model.num_layers = HIDDEN, LAYERS
    cfg.model.blocks[0].mlp.ffn_dim = FFN
    cfg.model.blocks[0].attention.head_dim = HEAD
    cfg.vocab_size, cfg.seq_len, cfg.batch_size = VOCAB, TOKENS, ROWS
    if change is not None:
        change(cfg)
    return cfg


def held(cfg: fdl.Config) -> dict[str, int]:
    """Bytes of each kind that this process holds in a step, by torch's own storages."""
    trainer, sizes = build_trainer(cfg), {}
    saved: dict[int, torch.UntypedStorage] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = local(tensor).untyped_storage()
        saved[storage._cdata] = storage
        return tensor

    def gradients(parameters: Iterable[nn.Parameter]) -> None:
        sizes["gradients"] = size_of(p.grad for p in parameters)

    trainer.gradient_transform = gradients
    with trainer.parallel as parallel:
        state = trainer.setup(train.RunDirectory(Path("unused"), texts={}))
        kept = {local(p).untyped_storage()._cdata for p in state.model.parameters()}
        rows = ROWS // parallel.data_size
        tokens = torch.arange(ROWS * (TOKENS + 1)).remainder(VOCAB).view(ROWS, -1)[:rows]
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            loss = state.module(tokens)
        # By now, shards have freed the weights that they had gathered, but for those of no block.
        sizes["activations"] = sum(x.nbytes() for at, x in saved.items() if at not in kept)
        loss.backward()
        state.optimizer.zero_grad()
        trainer.update(state, Batch(tokens))
        sizes["parameters"] = size_of(state.model.parameters())
        moments = [v for one in state.optimizer.state.values() for v in one.values()]
        sizes["optimizer"] = size_of(moment for moment in moments if moment.dim())
        return sizes


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def size_of(tensors: Iterable[Tensor | None]) -> int:
    return sum(local(tensor.detach()).nbytes for tensor in tensors if tensor is not None)


def main(path: Path, *names: str) -> None:
    """Leave what this process holds on some meshes in one file."""
    with DataParallel():
        sizes: dict[str, Any] = {name: held(small(MESHES[name])) for name in names}
    (path / f"rank{os.environ['RANK']}.json").write_text(json.dumps(sizes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
