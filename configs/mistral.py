"""Mistral (Jiang et al., 2023, arXiv:2310.06825) and its larger successors."""

from functools import partial

import fiddle as fdl

from fidgpt.configs.decoder import decoder, family
from fidgpt.train import Trainer

mistral = partial(decoder, num_heads=32, num_kv_heads=8, eps=1e-6, window=4096)
HUB = family("mistral", mistral, "window")
MINISTRAL = family("ministral", mistral, "window layer_types")


_mistral_7b = partial(
    mistral, hidden_dim=4096, num_layers=32, ffn_dim=14_336, seq_len=32_768, eps=1e-5
)
_with_large_table = partial(
    mistral, hidden_dim=5120, num_layers=40, head_dim=128, vocab_size=131_072, window=None, eps=1e-5
)


def mistral_7b() -> fdl.Config[Trainer]:
    """7.2 billion parameters: version 0.1, with a sliding window of 4,096 tokens."""
    return _mistral_7b(vocab_size=32_000)


def mistral_7b_v0_3() -> fdl.Config[Trainer]:
    """Mistral 7B without a window, with a larger vocabulary and a larger RoPE base."""
    return _mistral_7b(vocab_size=32_768, window=None, theta=1e6)


def mistral_nemo_12b() -> fdl.Config[Trainer]:
    """12 billion parameters; heads do not fill the width."""
    return _with_large_table(ffn_dim=14_336, seq_len=1_024_000, theta=1e6)


def mistral_small_24b() -> fdl.Config[Trainer]:
    """24 billion parameters: Mistral Small 3."""
    return _with_large_table(ffn_dim=32_768, seq_len=32_768, theta=1e8)
