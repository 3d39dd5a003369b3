"""The values that every config holds, and the changes that are made to them."""

from collections.abc import Callable
from typing import Any

import parts

BLOCK: dict[str, Any] = dict(residual_scale=1.0, drop_path=0.0, recompute=False, placement="pre")
NORM: dict[str, Any] = dict(hidden_dim=768, eps=1e-6, affine=True)
ATTENTION: dict[str, Any] = dict(
    hidden_dim=768,
    num_heads=12,
    num_kv_heads=12,
    head_dim=64,
    window=0,
    bias=False,
    dropout=0.0,
    kernel="sdpa",
)
ROPE: dict[str, Any] = dict(theta=10_000.0, scaling=1.0, max_len=1024)
MLP: dict[str, Any] = dict(
    hidden_dim=768, ffn_dim=3072, activation="gelu", bias=False, dropout=0.0, init_std=0.02
)
EMBEDDING: dict[str, Any] = dict(vocab_size=50_257, hidden_dim=768, init_std=0.02, scale=1.0)
UNEMBEDDING: dict[str, Any] = dict(vocab_size=50_257, hidden_dim=768, bias=False, soft_cap=0.0)
GPT: dict[str, Any] = dict(hidden_dim=768, vocab_size=50_257, max_len=1024, dtype="bfloat16")
OPTIMIZER: dict[str, Any] = dict(
    learning_rate=3e-4,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    weight_decay=0.1,
    fused=True,
    amsgrad=False,
    foreach=False,
)
SCHEDULE: dict[str, Any] = dict(
    warmup_steps=100, num_steps=1000, decay_steps=900, min_ratio=0.1, shape="cosine"
)
DATA: dict[str, Any] = dict(
    path="data/web",
    split="train",
    tokenizer="gpt2",
    seq_len=1024,
    batch_size=32,
    seed=0,
    num_workers=2,
    shuffle=True,
)
CHECKPOINTS: dict[str, Any] = dict(directory="runs/gpt", every=100, keep=3, wait=False)
TRAINER: dict[str, Any] = dict(
    run_name="base",
    num_steps=1000,
    seed=0,
    precision="bfloat16",
    max_grad_norm=1.0,
    log_every=10,
    eval_every=100,
    compile=False,
)

Make = Callable[..., Any]  # of a class of parts and its values


def config(num_blocks: int, make: Make) -> Any:
    """The whole config, every part of it made by `make(Class, **values)`."""
    return make(
        parts.Trainer,
        **TRAINER,
        model=make(
            parts.Gpt,
            **GPT,
            embedding=make(parts.Embedding, **EMBEDDING),
            blocks=[block(make) for _ in range(num_blocks)],
            final_norm=make(parts.Norm, **NORM),
            unembedding=make(parts.Unembedding, **UNEMBEDDING),
        ),
        optimizer=make(parts.Optimizer, **OPTIMIZER),
        schedule=make(parts.Schedule, **SCHEDULE),
        data=make(parts.Data, **DATA),
        checkpoints=make(parts.Checkpoints, **CHECKPOINTS),
    )


def block(make: Make) -> Any:
    """One block, which shares nothing with another."""
    return make(
        parts.Block,
        **BLOCK,
        attention_norm=make(parts.Norm, **NORM),
        attention=make(parts.Attention, **ATTENTION, rope=make(parts.Rope, **ROPE)),
        mlp_norm=make(parts.Norm, **NORM),
        mlp=make(parts.Mlp, **MLP),
    )


def overrides(num_blocks: int) -> dict[str, Any]:
    """Twenty places and their new values, eight of them in different blocks."""
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
    """Five of them: what the two configs of a comparison differ in."""
    return dict(list(overrides(num_blocks).items())[1:6])


def objects(num_blocks: int, changes: dict[str, Any]) -> Any:
    """What must be built: the parts themselves, made without any config."""
    root = config(num_blocks, lambda part, **values: part(**values))
    return parts.assign(root, changes)
