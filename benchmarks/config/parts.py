"""The program that every config here configures: dataclasses, which know of no config system."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(kw_only=True)
class Rope:
    """Rotates queries and keys."""

    theta: float = 10_000.0
    scaling: float = 1.0
    max_len: int = 1024


@dataclass(kw_only=True)
class Norm:
    """Scales activations."""

    hidden_dim: int = 768
    eps: float = 1e-6
    affine: bool = True


@dataclass(kw_only=True)
class Attention:
    """Mixes tokens."""

    hidden_dim: int = 768
    num_heads: int = 12
    num_kv_heads: int = 12
    head_dim: int = 64
    window: int = 0
    bias: bool = False
    dropout: float = 0.0
    kernel: str = "sdpa"
    rope: Rope


@dataclass(kw_only=True)
class Mlp:
    """Mixes channels."""

    hidden_dim: int = 768
    ffn_dim: int = 3072
    activation: str = "gelu"
    bias: bool = False
    dropout: float = 0.0
    init_std: float = 0.02


@dataclass(kw_only=True)
class Block:
    """A layer: 27 values with those of its parts."""

    residual_scale: float = 1.0
    drop_path: float = 0.0
    recompute: bool = False
    placement: str = "pre"
    attention_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: Mlp


@dataclass(kw_only=True)
class Embedding:
    """A vector for each token."""

    vocab_size: int = 50_257
    hidden_dim: int = 768
    init_std: float = 0.02
    scale: float = 1.0


@dataclass(kw_only=True)
class Unembedding:
    """Logits for each token."""

    vocab_size: int = 50_257
    hidden_dim: int = 768
    bias: bool = False
    soft_cap: float = 0.0


@dataclass(kw_only=True)
class Gpt:
    """The model."""

    hidden_dim: int = 768
    vocab_size: int = 50_257
    max_len: int = 1024
    dtype: str = "bfloat16"
    embedding: Embedding
    blocks: list[Block]
    final_norm: Norm
    unembedding: Unembedding


@dataclass(kw_only=True)
class Optimizer:
    """AdamW."""

    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    fused: bool = True
    amsgrad: bool = False
    foreach: bool = False


@dataclass(kw_only=True)
class Schedule:
    """The learning rate over the steps."""

    warmup_steps: int = 100
    num_steps: int = 1000
    decay_steps: int = 900
    min_ratio: float = 0.1
    shape: str = "cosine"


@dataclass(kw_only=True)
class Data:
    """Batches of tokens."""

    path: str = "data/web"
    split: str = "train"
    tokenizer: str = "gpt2"
    seq_len: int = 1024
    batch_size: int = 32
    seed: int = 0
    num_workers: int = 2
    shuffle: bool = True


@dataclass(kw_only=True)
class Checkpoints:
    """Where and when the state is saved."""

    directory: str = "runs/gpt"
    every: int = 100
    keep: int = 3
    wait: bool = False


@dataclass(kw_only=True)
class Trainer:
    """The root: 27 values a block, and 48 others."""

    run_name: str = "base"
    num_steps: int = 1000
    seed: int = 0
    precision: str = "bfloat16"
    max_grad_norm: float = 1.0
    log_every: int = 10
    eval_every: int = 100
    compile: bool = False
    model: Gpt
    optimizer: Optimizer
    schedule: Schedule
    data: Data
    checkpoints: Checkpoints


def values_of(part: type[Any]) -> dict[str, Any]:
    """Return the values that a part has by default, without the parts inside it."""
    return {name: getattr(part, name) for name in _names(part) if hasattr(part, name)}


def built(config: Any) -> Any:
    """Build new objects from dataclasses that serve as a config."""
    if isinstance(config, list):
        return [built(item) for item in config]
    if type(config).__module__ != __name__:
        return config
    return type(config)(**{name: built(getattr(config, name)) for name in _names(type(config))})


def value_at(root: Any, path: str) -> Any:
    """Return the value at a path such as `model.blocks[3].mlp.ffn_dim` of objects or containers."""
    for name in path.replace("[", ".").replace("]", "").split(".") if path else ():
        if isinstance(root, dict):
            root = root[name]
        else:
            root = root[int(name)] if name.isdigit() else getattr(root, name)
    return root


def assign(root: Any, changes: dict[str, Any]) -> Any:
    """Set attributes at paths, as Python does; return the root."""
    for path, value in changes.items():
        above, _, name = path.rpartition(".")
        setattr(value_at(root, above), name, value)
    return root


def differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Return the places where two trees of parts, dicts and lists differ, with both values."""
    if type(old) is type(new) and type(old).__module__ == __name__:
        old, new = vars(old), vars(new)
    if isinstance(old, dict) and isinstance(new, dict):
        inside = [(f"{path}.{name}", old.get(name), new.get(name)) for name in {**old, **new}]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        inside = [(f"{path}[{i}]", one, other) for i, (one, other) in pairs]
    else:
        return [] if old == new else [(path, old, new)]
    return [found for place, *pair in inside for found in differences(pair[0], pair[1], place)]


def _names(part: type[Any]) -> list[str]:
    return [field.name for field in fields(part)]
