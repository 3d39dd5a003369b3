"""The dataclasses that stand beside the parts where a system's configs are dataclasses."""

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import parts


@dataclass
class _Config:
    def build(self) -> Any:
        """The part that this describes, with all that is inside."""
        names = [one.name for one in fields(self)]
        part = getattr(parts, type(self).__name__.removesuffix("Config"))
        return part(**{name: _built(getattr(self, name)) for name in names})


def _built(value: Any) -> Any:
    if isinstance(value, list):
        return [item.build() for item in value]
    return value.build() if isinstance(value, _Config) else value


@dataclass
class RopeConfig(_Config):
    """Values of `parts.Rope`."""

    theta: float = 10_000.0
    scaling: float = 1.0
    max_len: int = 1024


@dataclass
class NormConfig(_Config):
    """Values of `parts.Norm`."""

    hidden_dim: int = 768
    eps: float = 1e-6
    affine: bool = True


@dataclass
class AttentionConfig(_Config):
    """Values of `parts.Attention`."""

    hidden_dim: int = 768
    num_heads: int = 12
    num_kv_heads: int = 12
    head_dim: int = 64
    window: int = 0
    bias: bool = False
    dropout: float = 0.0
    kernel: str = "sdpa"
    rope: RopeConfig = field(default_factory=RopeConfig)


@dataclass
class MlpConfig(_Config):
    """Values of `parts.Mlp`."""

    hidden_dim: int = 768
    ffn_dim: int = 3072
    activation: str = "gelu"
    bias: bool = False
    dropout: float = 0.0
    init_std: float = 0.02


@dataclass
class BlockConfig(_Config):
    """Values of `parts.Block`."""

    residual_scale: float = 1.0
    drop_path: float = 0.0
    recompute: bool = False
    placement: str = "pre"
    attention_norm: NormConfig = field(default_factory=NormConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    mlp_norm: NormConfig = field(default_factory=NormConfig)
    mlp: MlpConfig = field(default_factory=MlpConfig)


@dataclass
class EmbeddingConfig(_Config):
    """Values of `parts.Embedding`."""

    vocab_size: int = 50_257
    hidden_dim: int = 768
    init_std: float = 0.02
    scale: float = 1.0


@dataclass
class UnembeddingConfig(_Config):
    """Values of `parts.Unembedding`."""

    vocab_size: int = 50_257
    hidden_dim: int = 768
    bias: bool = False
    soft_cap: float = 0.0


@dataclass
class GptConfig(_Config):
    """Values of `parts.Gpt`."""

    hidden_dim: int = 768
    vocab_size: int = 50_257
    max_len: int = 1024
    dtype: str = "bfloat16"
    embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    blocks: list[BlockConfig] = field(default_factory=list)
    final_norm: NormConfig = field(default_factory=NormConfig)
    unembedding: UnembeddingConfig = field(default_factory=UnembeddingConfig)


@dataclass
class OptimizerConfig(_Config):
    """Values of `parts.Optimizer`."""

    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    fused: bool = True
    amsgrad: bool = False
    foreach: bool = False


@dataclass
class ScheduleConfig(_Config):
    """Values of `parts.Schedule`."""

    warmup_steps: int = 100
    num_steps: int = 1000
    decay_steps: int = 900
    min_ratio: float = 0.1
    shape: str = "cosine"


@dataclass
class DataConfig(_Config):
    """Values of `parts.Data`."""

    path: str = "data/web"
    split: str = "train"
    tokenizer: str = "gpt2"
    seq_len: int = 1024
    batch_size: int = 32
    seed: int = 0
    num_workers: int = 2
    shuffle: bool = True


@dataclass
class CheckpointsConfig(_Config):
    """Values of `parts.Checkpoints`."""

    directory: str = "runs/gpt"
    every: int = 100
    keep: int = 3
    wait: bool = False


@dataclass
class TrainerConfig(_Config):
    """Values of `parts.Trainer`."""

    run_name: str = "base"
    num_steps: int = 1000
    seed: int = 0
    precision: str = "bfloat16"
    max_grad_norm: float = 1.0
    log_every: int = 10
    eval_every: int = 100
    compile: bool = False
    model: GptConfig = field(default_factory=GptConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    data: DataConfig = field(default_factory=DataConfig)
    checkpoints: CheckpointsConfig = field(default_factory=CheckpointsConfig)


def config(num_blocks: int) -> TrainerConfig:
    """A config of so many blocks."""
    return TrainerConfig(model=GptConfig(blocks=[BlockConfig() for _ in range(num_blocks)]))


def differences(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """The places where two trees of dataclasses, dicts and lists differ, with both values."""
    if is_dataclass(old) and type(old) is type(new):
        old, new = vars(old), vars(new)
    if isinstance(old, dict) and isinstance(new, dict):
        inside = [(f"{path}.{name}", old.get(name), new.get(name)) for name in {**old, **new}]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        inside = [(f"{path}[{i}]", one, other) for i, (one, other) in pairs]
    else:
        return [] if old == new else [(path, old, new)]
    return [found for place, *pair in inside for found in differences(pair[0], pair[1], place)]
