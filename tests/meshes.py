"""One step of small families on meshes: the script that each process runs, and its cases."""

import contextlib
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import fiddle as fdl
import torch
from small_models import shrunk
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fidgpt import configs, data, fiddlers, train
from fidgpt.compose.runs import build_trainer
from fidgpt.model import NTKScaling, Prefix
from fidgpt.model.init import ZEROS, Constant
from fidgpt.parallel import DataParallel

SEQ_LEN, ROWS = 24, 4
SEQ_LENS, NUM_LAYERS = (256, 512), 4  # whose memory is measured
END_OF_TEXT = 256  # of bytes

Change = Callable[[fdl.Config], object]


def base(*changes: Change) -> fdl.Config:
    """`debug` with four heads, changed."""
    cfg = configs.debug()
    fiddlers.use_float32(cfg)
    cfg.model.blocks[0].attention.head_dim = 8
    for change in changes:
        change(cfg)
    return cfg


def prefix_mask(cfg: fdl.Config) -> None:
    attention = cfg.model.blocks[0].attention
    attention.mask = fdl.Config(Prefix, length=7)
    attention.rope.scaling = fdl.Config(NTKScaling, factor=2.0)


def accumulating(cfg: fdl.Config) -> None:
    cfg.micro_batch_size = 1


FAMILIES: dict[str, Callable[[], fdl.Config]] = {
    "llama": partial(shrunk, "llama3_8b"),
    "qwen3": partial(shrunk, "qwen3_8b"),
    "gemma3": partial(shrunk, "gemma3_1b"),  # windows in five of six layers
    "gpt2": partial(shrunk, "gpt2_124m"),  # learned positions, biases
    "deepseek_v3": partial(shrunk, "deepseek_v3"),  # latent attention, YaRN, balanced sequences
    "gpt_oss": partial(shrunk, "gpt_oss_20b"),  # sinks
    "mixtral": partial(shrunk, "mixtral_8x7b"),
    "lora": partial(base, fiddlers.use_lora),
    "mtp": partial(base, partial(fiddlers.use_mtp, num_tokens=2)),
    "packing": partial(base, fiddlers.use_document_mask),
    "mixture": partial(
        base,
        fiddlers.use_moe,
        fiddlers.use_mtp,
        fiddlers.use_document_mask,
        fiddlers.use_recompute,
        accumulating,
    ),
    "compiled": partial(base, fiddlers.use_compile, fiddlers.use_document_mask),
    # Fewer heads of keys than processes, and what depends on the number of a head.
    "alibi": partial(base, fiddlers.use_alibi, fiddlers.use_gqa, fiddlers.use_sinks),
    "prefix": partial(
        base,
        prefix_mask,
        fiddlers.use_value_embeddings,
        fiddlers.use_softcap,
        fiddlers.use_z_loss,
        fiddlers.tie_embeddings,
    ),
}


def ulysses(cfg: fdl.Config, **sizes: int) -> None:
    fiddlers.use_mesh(cfg, **sizes)
    fiddlers.use_ulysses(cfg)


MESHES: dict[int, dict[str, Change]] = {
    2: {
        "context": partial(fiddlers.use_mesh, context=2),
        "ulysses": partial(ulysses, context=2),
    },
    4: {
        "shard x context": partial(fiddlers.use_mesh, shard=2, context=2),
        "replicate x ulysses": partial(ulysses, replicate=2, context=2),
        "context": partial(fiddlers.use_mesh, context=4),
        "ulysses": partial(ulysses, context=4),
    },
}


def batch() -> Tensor:
    """Rows of some documents; the tokens that count in the loss are not alike in number."""
    tokens = torch.randint(0, 256, (ROWS, SEQ_LEN + 1), generator=torch.Generator().manual_seed(0))
    tokens[0, [3, 15]] = tokens[2, 9] = END_OF_TEXT
    for row, learned in enumerate((20, 25, 9, 14)):
        tokens[row, learned:] = data.mask_loss(tokens[row, learned:])
    return tokens


def step(cfg: fdl.Config, *, joins: bool) -> dict[str, Any]:
    """What one step gives: its metrics, and every gradient before they are clipped."""
    cfg.seq_len, cfg.batch_size = SEQ_LEN, ROWS
    trainer = build_trainer(cfg)
    for parameter in trainer.model.parameters():
        if vars(parameter).get("init") == ZEROS:  # as that of one half of LoRA, without gradients
            vars(parameter)["init"] = Constant(0.01)
    gradients: list[Tensor] = []

    def keep(parameters: Iterable[nn.Parameter]) -> None:
        gradients.extend(torch.zeros(0) if p.grad is None else whole(p.grad) for p in parameters)

    trainer.gradient_transform = keep
    with trainer.parallel if joins else contextlib.nullcontext():
        state = trainer.setup(train.RunDirectory(Path("unused"), texts={}))
        model, parallel = state.model, trainer.parallel
        rows = ROWS // parallel.data_size
        own = batch()[parallel.data_rank * rows :][:rows]
        row = trainer.update(state, own)
        names = [name for name, _ in model.named_parameters()]
        return {"row": row, "gradients": dict(zip(names, gradients, strict=True))}


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, of which this process may hold a shard."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def evaluated(cfg: fdl.Config, *, joins: bool) -> dict[str, float]:
    """The validation of new weights, on sequences of a length that two does not divide."""
    cfg.seq_len = SEQ_LEN
    cfg.evaluators["validation"].data.seq_len = SEQ_LEN + 3
    trainer = build_trainer(cfg)
    with trainer.parallel if joins else contextlib.nullcontext():
        trainer.prepare()
        state = trainer.setup(train.RunDirectory(Path("unused"), texts={}))
        return trainer.evaluators["validation"](state.replica, trainer.loss, trainer.parallel)


def activations(cfg: fdl.Config, *, seq_len: int, joins: bool) -> int:
    """Bytes that the backward pass of a step needs, of all tensors that autograd saves."""
    cfg.seq_len, cfg.batch_size, cfg.model.num_layers = seq_len, 2, NUM_LAYERS
    trainer = build_trainer(cfg)
    saved: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with trainer.parallel if joins else contextlib.nullcontext():
        state = trainer.setup(train.RunDirectory(Path("unused"), texts={}))
        kept = {p.untyped_storage().data_ptr() for p in state.model.parameters()}
        tokens = torch.arange(seq_len + 1).remainder(256).unsqueeze(0)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            loss = state.module(tokens, True)
        own = sum(size for place, size in saved.items() if place not in kept)
        loss.backward()  # before which all of them are alive, so that no place is counted twice
        return own


def others(is_main: bool) -> dict[str, Any]:
    """What meshes of two processes give besides gradients."""
    left: dict[str, Any] = {}
    for name, mesh in MESHES[2].items():
        cfg = FAMILIES["packing"]()
        mesh(cfg)
        left[f"evaluated on {name}"] = evaluated(cfg, joins=True)
        cfg = FAMILIES["lora"]()
        mesh(cfg)
        cfg.precision = fdl.Config(train.BFloat16)
        left[f"narrow on {name}"] = step(cfg, joins=True)["row"]
        for seq_len in SEQ_LENS:
            cfg = base(fiddlers.use_gqa)
            mesh(cfg)
            left[f"{seq_len} on {name}"] = activations(cfg, seq_len=seq_len, joins=True)
    if is_main:
        left["evaluated"] = evaluated(FAMILIES["packing"](), joins=False)
        cfg = FAMILIES["lora"]()
        cfg.precision = fdl.Config(train.BFloat16)
        left["narrow"] = step(cfg, joins=False)["row"]
        for seq_len in SEQ_LENS:
            left[f"{seq_len}"] = activations(base(fiddlers.use_gqa), seq_len=seq_len, joins=False)
    return left


def main(path: Path, *chosen: str) -> None:
    """Leave what every case gives on every mesh, and on one process, in one file."""
    with DataParallel() as processes:
        left: dict[str, Any] = {}
        for number, family in enumerate(chosen or FAMILIES):
            if number % processes.world_size == processes.rank:
                left[family] = step(FAMILIES[family](), joins=False)
            for name, mesh in MESHES[processes.world_size].items():
                cfg = FAMILIES[family]()
                mesh(cfg)
                result = step(cfg, joins=True)
                if processes.is_main:
                    left[f"{family} on {name}"] = result
        if processes.world_size == 2:
            left |= others(processes.is_main)
        torch.save(left, path / f"rank{processes.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
