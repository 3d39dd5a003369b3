"""The config that every system holds, and the changes that are made to it."""

from collections.abc import Callable
from typing import Any

import parts

Make = Callable[..., Any]  # of a class of parts and its values


def config(num_blocks: int, make: Make) -> Any:
    """Return the whole config, every part of it made by `make(Class, **values)`."""

    def made(part: type[Any], **inside: Any) -> Any:
        return make(part, **parts.values_of(part), **inside)

    blocks = [
        made(
            parts.Block,
            attention_norm=made(parts.Norm),
            attention=made(parts.Attention, rope=made(parts.Rope)),
            mlp_norm=made(parts.Norm),
            mlp=made(parts.Mlp),
        )
        for _ in range(num_blocks)
    ]
    model = made(
        parts.Gpt,
        embedding=made(parts.Embedding),
        blocks=blocks,
        final_norm=made(parts.Norm),
        unembedding=made(parts.Unembedding),
    )
    return made(
        parts.Trainer,
        model=model,
        optimizer=made(parts.Optimizer),
        schedule=made(parts.Schedule),
        data=made(parts.Data),
        checkpoints=made(parts.Checkpoints),
    )


def overrides(num_blocks: int) -> dict[str, Any]:
    """Return twenty places and their new values; eight lie in different blocks."""
    at = [i * num_blocks // 8 for i in range(8)]
    return {
        "run_name": "trial",
        "num_steps": 2000,
        "max_grad_norm": 0.5,
        f"model.blocks[{at[0]}].attention.window": 128,
        f"model.blocks[{at[1]}].mlp.ffn_dim": 4096,
        f"model.blocks[{at[2]}].attention.num_kv_heads": 4,
        f"model.blocks[{at[3]}].attention.rope.theta": 500_000.0,
        f"model.blocks[{at[4]}].mlp.dropout": 0.1,
        f"model.blocks[{at[5]}].attention_norm.eps": 0.001,
        f"model.blocks[{at[6]}].mlp.activation": "relu",
        f"model.blocks[{at[7]}].recompute": True,
        "model.final_norm.eps": 0.002,
        "optimizer.learning_rate": 0.0006,
        "optimizer.weight_decay": 0.05,
        "schedule.warmup_steps": 50,
        "schedule.min_ratio": 0.05,
        "data.path": "data/code",
        "data.seq_len": 512,
        "data.batch_size": 64,
        "checkpoints.keep": 5,
    }


def few_overrides(num_blocks: int) -> dict[str, Any]:
    """Return the five overrides in which the two configs of a comparison differ."""
    return dict(list(overrides(num_blocks).items())[1:6])


def objects(num_blocks: int, changes: dict[str, Any]) -> Any:
    """Return the objects that a system must build, made without any config system."""
    return parts.assign(config(num_blocks, plain), changes)


def plain(part: type[Any], **values: Any) -> Any:
    """Make the part itself."""
    return part(**values)
