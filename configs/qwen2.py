"""Qwen 2.5 (Qwen Team, 2024, arXiv:2412.15115): Llama with biases on queries, keys and values."""

from collections.abc import Sequence
from functools import partial

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.configs.variant import variant_of
from fidgpt.configs.windows import look_back, sliding_from
from fidgpt.graph import find
from fidgpt.model import Attention
from fidgpt.train import Trainer


@variant_of(decoder, eps=1e-6)
def windowed(
    cfg: fdl.Config[Trainer],
    *,
    num_layers: int,
    window: int | None,
    layer_types: Sequence[str] | None,
    num_full: int = 0,
) -> None:
    """A decoder with `num_full` layers of full attention, then layers with a sliding window.

    `layer_types`, if given, takes precedence over `num_full`.
    """
    if layer_types is None:
        look_back(cfg, window, sliding_from(num_full, num_layers))


@variant_of(windowed)
def qwen2(cfg: fdl.Config[Trainer]) -> None:
    """A decoder with biases on queries, keys and values."""
    for attention in find(cfg.model, Attention):
        attention.bias, attention.out_bias = True, False


HUB = family(
    "qwen2",
    qwen2,
    "window layer_types",
    settings={"num_full": "max_window_layers"},
    switches={"sliding_window": "use_sliding_window"},  # files may set a window that is disabled
    fixed={"use_sliding_window": (False, True)},
    defaults={"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
)


_small = partial(qwen2, num_kv_heads=2, vocab_size=151_936, seq_len=32_768, theta=1e6, tied=True)
_large = partial(qwen2, vocab_size=152_064, seq_len=131_072, theta=1e6)


def qwen2_5_0_5b() -> fdl.Config[Trainer]:
    """494 million parameters, tied embeddings."""
    return _small(hidden_dim=896, num_layers=24, num_heads=14, ffn_dim=4864)


def qwen2_5_1_5b() -> fdl.Config[Trainer]:
    """1.5 billion parameters, tied embeddings."""
    return _small(hidden_dim=1536, num_layers=28, num_heads=12, ffn_dim=8960, seq_len=131_072)


def qwen2_5_3b() -> fdl.Config[Trainer]:
    """3.1 billion parameters, tied embeddings."""
    return _small(hidden_dim=2048, num_layers=36, num_heads=16, ffn_dim=11_008)


def qwen2_5_7b() -> fdl.Config[Trainer]:
    """7.6 billion parameters."""
    return _large(hidden_dim=3584, num_layers=28, num_heads=28, num_kv_heads=4, ffn_dim=18_944)


def qwen2_5_14b() -> fdl.Config[Trainer]:
    """15 billion parameters."""
    return _large(
        hidden_dim=5120, num_layers=48, num_heads=40, num_kv_heads=8, ffn_dim=13_824, eps=1e-5
    )


def qwen2_5_32b() -> fdl.Config[Trainer]:
    """33 billion parameters."""
    return _large(
        hidden_dim=5120, num_layers=64, num_heads=40, num_kv_heads=8, ffn_dim=27_648, eps=1e-5
    )


def qwen2_5_72b() -> fdl.Config[Trainer]:
    """73 billion parameters."""
    return _large(
        hidden_dim=8192, num_layers=80, num_heads=64, num_kv_heads=8, ffn_dim=29_568, eps=1e-5
    )
