"""Qwen 3, dense (Yang et al., 2025, arXiv:2505.09388): queries and keys are normalized."""

from functools import partial

import fiddle as fdl

from fidgpt.configs import qwen2
from fidgpt.configs.hub import QK_NORMS
from fidgpt.configs.variant import variant_of
from fidgpt.fiddlers import use_qk_norm
from fidgpt.train import Trainer


@variant_of(qwen2.windowed, head_dim=128)
def qwen3(cfg: fdl.Config[Trainer], *, eps: float) -> None:
    """A decoder with queries and keys normalized per head; heads need not fill the width."""
    use_qk_norm(cfg, eps=eps)


HUB = qwen2.HUB.near("qwen3", qwen3, "attention_bias", tensors=QK_NORMS)


_qwen3 = partial(qwen3, num_kv_heads=8, vocab_size=151_936, seq_len=40_960, theta=1e6)


def qwen3_0_6b() -> fdl.Config[Trainer]:
    """596 million parameters, tied embeddings."""
    return _qwen3(hidden_dim=1024, num_layers=28, num_heads=16, ffn_dim=3072, tied=True)


def qwen3_1_7b() -> fdl.Config[Trainer]:
    """1.7 billion parameters, tied embeddings."""
    return _qwen3(hidden_dim=2048, num_layers=28, num_heads=16, ffn_dim=6144, tied=True)


def qwen3_4b() -> fdl.Config[Trainer]:
    """4.0 billion parameters, tied embeddings."""
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
