"""Qwen 3 without experts (Yang et al., 2025, arXiv:2505.09388): queries and keys normalised."""

import fiddle as fdl

from fidgpt.configs.decoder import decoder
from fidgpt.configs.hub import SETTINGS, TENSORS, Family
from fidgpt.fiddlers import use_qk_norm
from fidgpt.train import Trainer


def qwen3(
    *,
    hidden_dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    ffn_dim: int,
    vocab_size: int,
    seq_len: int,
    head_dim: int = 128,
    theta: float = 10_000.0,
    scaling: fdl.Config | None = None,
    eps: float = 1e-6,
    tied: bool = False,
) -> fdl.Config[Trainer]:
    """A decoder that normalises queries and keys head by head; heads need not fill the width."""
    cfg = decoder(
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_dim=ffn_dim,
        vocab_size=vocab_size,
        seq_len=seq_len,
        theta=theta,
        scaling=scaling,
        eps=eps,
        tied=tied,
    )
    use_qk_norm(cfg, eps=eps)
    return cfg


_ATTENTION = "model.layers.*.self_attn"
HUB = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    config=qwen3,
    settings=SETTINGS,
    tensors={
        **TENSORS,
        "blocks.*.attention.query_norm": f"{_ATTENTION}.q_norm",
        "blocks.*.attention.key_norm": f"{_ATTENTION}.k_norm",
    },
    fixed={"hidden_act": ("silu",), "attention_bias": (False,), "use_sliding_window": (False,)},
)


def qwen3_0_6b() -> fdl.Config[Trainer]:
    """596 million parameters, one table."""
    return _qwen3(hidden_dim=1024, num_layers=28, num_heads=16, ffn_dim=3072, tied=True)


def qwen3_1_7b() -> fdl.Config[Trainer]:
    """1.7 billion parameters, one table."""
    return _qwen3(hidden_dim=2048, num_layers=28, num_heads=16, ffn_dim=6144, tied=True)


def qwen3_4b() -> fdl.Config[Trainer]:
    """4.0 billion parameters, one table."""
    return _qwen3(hidden_dim=2560, num_layers=36, num_heads=32, ffn_dim=9728, tied=True)


def qwen3_8b() -> fdl.Config[Trainer]:
    """8.2 billion parameters."""
    return _qwen3(hidden_dim=4096, num_layers=36, num_heads=32, ffn_dim=12_288)


def qwen3_14b() -> fdl.Config[Trainer]:
    """15 billion parameters."""
    return _qwen3(hidden_dim=5120, num_layers=40, num_heads=40, ffn_dim=17_408)


def qwen3_32b() -> fdl.Config[Trainer]:
    """33 billion parameters."""
    return _qwen3(hidden_dim=5120, num_layers=64, num_heads=64, ffn_dim=25_600)


def _qwen3(
    *, hidden_dim: int, num_layers: int, num_heads: int, ffn_dim: int, tied: bool = False
) -> fdl.Config[Trainer]:
    return qwen3(
        hidden_dim=hidden_dim,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=8,
        ffn_dim=ffn_dim,
        vocab_size=151_936,
        seq_len=40_960,
        theta=1e6,
        tied=tied,
    )
